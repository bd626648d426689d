"""One step of vLLM's as a `BatchGeometry`, and what our plans make of it."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder

from atom_kernels.protocols import SINGLE_RANK, BatchGeometry, Collectives
from atom_vllm.mixers.kernels import AtomKernels
from atom_vllm.models.collectives import context_parallel


class BuildsMetadata(Protocol):
    """What `AtomMetadata` asks of a plan."""

    def build_metadata(self, geometry: BatchGeometry) -> Any: ...


@dataclass(frozen=True)
class AtomMetadata:
    """One step: the batch, and what each plan of the group's layers made of it.

    A plan's part is made when the first of its layers asks for it: then whatever it launches is captured with the layer
    where vLLM captures a graph.
    """

    geometry: BatchGeometry
    by_plan: dict[int, Any] = field(default_factory=dict)

    def of(self, plan: BuildsMetadata) -> Any:
        """The metadata of this step for `plan`, which equal layers share."""
        key = id(plan)
        if key not in self.by_plan:
            self.by_plan[key] = plan.build_metadata(self.geometry)
        return self.by_plan[key]


class AtomMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Builds the metadata of one group of layers, once a step."""

    reorder_batch_threshold: int | None = 1  # decodes come first, as our geometry has them
    keeps_states: ClassVar[bool] = False  # of requests, in all layers of the group

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._context = context_parallel()

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Steps in which every request decodes one token may be captured whole, if all our kernels here may.

        Those read every length on the device, and take a request without tokens for padding. Other steps share out
        their work by numbers that the host knows.
        """
        layers = vllm_config.compilation_config.static_forward_context.values()
        ours = [layer.impl for layer in layers if isinstance(getattr(layer, "impl", None), AtomKernels)]
        alike = [layer for layer in ours if layer.keeps_states == cls.keeps_states]
        if alike and all(layer.plan_for(kv_cache_spec.block_size).capturable for layer in alike):
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return AttentionCGSupport.NEVER

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> AtomMetadata:
        return AtomMetadata(geometry_of(common_attn_metadata, self._context))


def geometry_of(common: Any, context: Collectives = SINGLE_RANK) -> BatchGeometry:
    """vLLM's ``CommonAttentionMetadata``, decodes in front, as the geometry of our kernels.

    Its lengths and block tables are those of whole requests, whichever ranks of `context` keep their tokens.
    """
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
        slot_mapping=_whole_slots(common.slot_mapping[:num_tokens], context),
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        num_decodes=num_decodes,
        max_query_len=common.max_query_len,
        max_seq_len=common.max_seq_len,
    )


def _whole_slots(own_slots: torch.Tensor, context: Collectives) -> torch.Tensor:
    """Slots in blocks of all ranks' tokens, of those in blocks of this rank's own; -1 for other ranks' stays.

    Each rank keeps one of N tokens in a row, in its order.
    """
    if context.size == 1:
        return own_slots
    return torch.where(own_slots < 0, -1, own_slots * context.size + context.rank)
