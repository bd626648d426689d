"""Everything of MORI that we call, with the parameters that we pass: methods by position, its config by name."""

from __future__ import annotations

OP, CONFIG = "EpDispatchCombineOp", "EpDispatchCombineConfig"

# The leading parameters of the operator's methods, behind `self`; all that follow have defaults.
METHODS: dict[str, tuple[str, ...]] = {
    "dispatch": ("input", "weights", "scales", "indices"),
    "combine": ("input", "weights", "indices"),
}
FIELDS = (
    "data_type",
    "rank",
    "world_size",
    "hidden_dim",
    "scale_dim",
    "scale_type_size",
    "max_token_type_size",
    "max_num_inp_token_per_rank",
    "num_experts_per_rank",
    "num_experts_per_token",
)
JOIN, JOIN_PARAMETERS = "shmem_torch_process_group_init", ("group_name",)
