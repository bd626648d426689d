"""The config of an EAGLE or EAGLE-3 head: that of a published folder, or of one in the format of speculators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atom_models.architectures.llama import LlamaConfig
from atom_models.checkpoint.config_fields import normalize_config
from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.weight_names import weight_names
from atom_models.config.other_fields import unknown_fields
from atom_models.config.reading import read_config

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

EagleMethod = Literal["eagle", "eagle3"]

# By the name that config.json gives; None where both kinds are written with it.
_ARCHITECTURES: Mapping[str, EagleMethod | None] = {
    "LlamaForCausalLM": None,
    "EagleLlamaForCausalLM": "eagle",
    "LlamaForCausalLMEagle": "eagle",
    "Eagle3LlamaForCausalLM": "eagle3",
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3Speculator": "eagle3",
    "Eagle3DraftModel": "eagle3",
}
# By `model_type`: kinds of decoder layer that heads have.
_LAYERS = ("llama", "qwen3")
# What EAGLE-3 has beside a Llama layer, and EAGLE has not.
_OF_EAGLE3 = "hidden_norm.weight"
# Fields of the format of speculators that are not of the head itself.
_OF_SPECULATORS = ("speculators_config", "speculators_model_type", "speculators_version", "transformer_layer_config")


@dataclass(frozen=True, kw_only=True)
class EagleConfig(LlamaConfig):
    """Fields of a head's `config.json`; those of `LlamaConfig` are of its layers, `vocab_size` is the target's.

    Attributes:
        eagle_aux_hidden_state_layer_ids: the layers of the target that it reads, as `choose_draft` understands them.
        draft_vocab_size: tokens that it can draft; None is all.
        target_hidden_size: None is its own.
        norm_before_residual: the residual begins as what `hidden_norm` gives, not as what it takes.
        norm_before_fc: all outputs of the target's layers are normed together before `fc`.
        fc_norm: each of them is normed by itself.
        norm_output: the next draft reads what the last norm gives.
        logit_scale: factor on the logits.
    """

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "use_aux_hidden_state": (True,),
        "use_sliding_window": (False,),
        "sliding_window": (),
        "quantization_config": (),
        # Choices of one trainer, which EAGLE-3 makes so.
        **dict.fromkeys(("use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular"), (True,)),
        "use_mtp_layernorm": (False,),
        "parallel_draft_step": (1,),
    }
    # These describe the training, and a bias that the tensors show.
    unread: ClassVar[tuple[str, ...]] = (
        *("bias", "embed_requires_grad", "enable_sp_ulysses", "has_no_defaults_at_init", "max_window_layers"),
        *("parallel_draft_heads_num_layers", "ttt_steps"),
    )

    model_type: str = "llama"
    eagle_aux_hidden_state_layer_ids: Sequence[int] | None = None
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0

    @property
    def has_head_norms(self) -> bool:
        return self.model_type == "qwen3"

    @property
    def head_size(self) -> int:
        return self.head_dim or (128 if self.model_type == "qwen3" else super().head_size)

    @property
    def num_drafted(self) -> int:
        """Tokens that it can draft."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def target_size(self) -> int:
        """The hidden size of the target."""
        return self.target_hidden_size or self.hidden_size


def eagle_method(checkpoint: Checkpoint) -> EagleMethod:
    """Which kind of head a checkpoint is: by its architecture, or its tensors, or its vocabulary where it has none.

    Raises:
        CheckpointError: it is neither.
    """
    name = checkpoint.architecture
    kind = checkpoint.config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"{checkpoint.path}: speculators_model_type is {kind!r}; only eagle3 can draft here")
    if name not in _ARCHITECTURES:
        raise CheckpointError(
            f"{checkpoint.path} is no draft model that is known here: its architecture is {name}, and those of EAGLE "
            f"and EAGLE-3 heads are {', '.join(_ARCHITECTURES)}"
        )
    known, names = _ARCHITECTURES[name], weight_names(checkpoint.path)
    if known is not None:
        return known
    if names:
        return "eagle3" if any(stored.endswith(_OF_EAGLE3) for stored in names) else "eagle"
    return "eagle3" if checkpoint.config.get("draft_vocab_size") else "eagle"


def read_eagle_config(checkpoint: Checkpoint) -> EagleConfig:
    """The config of a head.

    Raises:
        CheckpointError: a field is missing, wrong, unknown, or asks for what is not implemented; its name is said.
    """
    for name in ("eagle_config", "transformer_layer_config"):
        value = checkpoint.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise CheckpointError(f"{checkpoint.path}: config.json: {name} is {value!r}, not an object")
    fields = _flat(checkpoint.config)
    unknown = unknown_fields(EagleConfig, fields)
    if unknown:
        raise CheckpointError(
            f"{checkpoint.path}: config.json of the draft model sets {', '.join(unknown)}, which is unknown here: take "
            "another draft model"
        )
    try:
        config = read_config(EagleConfig, fields)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if config.model_type not in _LAYERS:
        raise CheckpointError(
            f"{checkpoint.path}: layers of model_type {config.model_type!r} are not implemented in a draft model; "
            f"those of {' and '.join(_LAYERS)} are"
        )
    return config


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """All fields side by side: those of `eagle_config` too, and of speculators' `transformer_layer_config`."""
    own = {name: value for name, value in config.items() if name not in (*_OF_SPECULATORS, "eagle_config")}
    own |= config.get("eagle_config") or {}
    layer = config.get("transformer_layer_config")
    if layer is None:
        return own
    own.pop("model_type", None)
    return {"norm_before_residual": True, **normalize_config(layer), **own}
