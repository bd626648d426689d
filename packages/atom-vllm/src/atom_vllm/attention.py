"""Our attention as a backend of vLLM's: its metadata becomes a `BatchGeometry`, its cache our layout over its bytes.

vLLM gives each layer one tensor, logically ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, keys before
values, of any strides. Our kernels take the two halves as strided views.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, MultipleOf

from atom_kernels.attention import AttentionPlan, AttentionProblem
from atom_kernels.protocols import BatchGeometry
from atom_vllm.cache_view import plan_over_view, split_view


@dataclass(frozen=True)
class AtomMetadata:
    """One step: the batch, and what each plan of the group's layers made of it.

    A plan's part is made when the first of its layers asks for it: then whatever it launches is captured with the layer
    where vLLM captures a graph.
    """

    geometry: BatchGeometry
    by_problem: dict[AttentionProblem, Any] = field(default_factory=dict)

    def of(self, plan: AttentionPlan) -> Any:
        """What `plan` needs to know about the step."""
        if plan.problem not in self.by_problem:
            self.by_problem[plan.problem] = plan.build_metadata(self.geometry)
        return self.by_problem[plan.problem]


class AtomAttentionBackend(AttentionBackend):
    """See the module's docstring."""

    accept_output_buffer: bool = True
    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # the name that vLLM keeps for backends from outside

    @staticmethod
    def get_impl_cls() -> type[AtomAttention]:
        return AtomAttention

    @staticmethod
    def get_builder_cls() -> type[AtomMetadataBuilder]:
        return AtomMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Asked for by vLLM before 0.29; later versions give every backend this view."""
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any: selection has the last word


class AtomMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Builds the metadata of one group of layers, once a step."""

    reorder_batch_threshold: int | None = 1  # decodes come first, as our geometry has them

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> AtomMetadata:
        return AtomMetadata(geometry_of(common_attn_metadata))


def geometry_of(common: Any) -> BatchGeometry:
    """vLLM's ``CommonAttentionMetadata``, decodes in front, as the geometry of our kernels."""
    num_reqs, num_tokens = common.num_reqs, common.num_actual_tokens
    if common.max_query_len <= 1:
        num_decodes = num_reqs
    else:
        starts = common.query_start_loc_cpu[: num_reqs + 1]
        longer = (starts.diff() > 1).nonzero()
        num_decodes = int(longer[0]) if len(longer) else num_reqs
    return BatchGeometry(
        query_start_loc=common.query_start_loc[: num_reqs + 1],
        seq_lens=common.seq_lens[:num_reqs],
        block_table=common.block_table_tensor[:num_reqs],
        slot_mapping=common.slot_mapping[:num_tokens],
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        num_decodes=num_decodes,
        max_query_len=common.max_query_len,
        max_seq_len=common.max_seq_len,
    )


class AtomAttention(AttentionImpl[Any]):
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **_: Any,
    ) -> None:
        refused = {
            "alibi": alibi_slopes is not None,
            f"attention of type {attn_type}": attn_type != "decoder",
            "layers that share another's cache": kv_sharing_target_layer_name is not None,
        }
        for what, is_asked in refused.items():
            if is_asked:
                raise NotImplementedError(
                    f"atom-vllm's attention has no {what}: set ATOM_DISABLE_VLLM_PLUGIN_ATTENTION=1 to let vLLM attend"
                )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks
        self._window = sliding_window
        self._soft_cap = logits_soft_cap or None
        self._dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self._plans: dict[int, AttentionPlan] = {}
        self._halves: tuple[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def plan_for(self, block_size: int) -> AttentionPlan:
        """The plan over vLLM's blocks of `block_size` tokens; raises UnsupportedAttentionError."""
        if block_size not in self._plans:
            problem = AttentionProblem(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                scale=self.scale,
                dtype=self._dtype,
                cache_dtype=self._dtype,
                block_size=block_size,
                sliding_window=self._window,
                has_sinks=self.sinks is not None,
                soft_cap=self._soft_cap,
            )
            self._plans[block_size] = plan_over_view(problem)
        return self._plans[block_size]

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AtomMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes keys and values to their slots, and the result to `output` ``[T, num_heads, head_dim]``."""
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        plan = self.plan_for(kv_cache.shape[2])
        new = slice(0, attn_metadata.geometry.num_tokens)
        out = plan.forward(
            query[new], key[new], value[new], self._views(kv_cache), attn_metadata.of(plan), sinks=self.sinks
        )
        output.view(-1, self.num_heads, self.head_size)[new].copy_(out)
        return output

    def _views(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in it; made once for each cache."""
        if self._halves is None or self._halves[0] != kv_cache.data_ptr():
            self._halves = (kv_cache.data_ptr(), split_view(kv_cache))
        return self._halves[1]
