"""Attention between the patches of a picture, or of a window of it, by the operator of encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from atom_kernels.attention import AttentionPrologue
from atom_kernels.attention.encoder import EncoderAttentionProblem
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.protocols import BatchGeometry
from atom_models.layers import Layer, QKVParallelLinear, ReplicatedLinear

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.vision.towers.step import TowerStep


class AttendedRuns(NamedTuple):
    """What attention layers of a tower share in one call: which rows see each other, and how each is turned."""

    metadata: Any
    prologue: AttentionPrologue | None


def plan_attention(num_heads: int, head_dim: int, context: BuildContext) -> MixerPlan:
    """The kernel that runs all attention layers of a tower."""
    problem = EncoderAttentionProblem(
        num_heads=num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype=context.dtype_name,
        cache=context.cache_format,
        block_size=context.block_size,
    )
    return select_mixer(problem, context.platform)


def attend_within(plan: MixerPlan, step: TowerStep, *, kind: int = 0, interleaved: bool = False) -> AttendedRuns:
    """Runs of rows that see themselves alone. Nothing of it depends on their lengths: a graph may hold it.

    Args:
        kind: which of the step's runs they are.
        interleaved: neighbors in a head turn together, instead of its halves.
    """
    starts, num_rows, device, angles = step.starts[kind], len(step.rows), step.rows.device, step.angles
    num_runs = len(starts) - 1
    geometry = BatchGeometry(
        query_start_loc=starts,
        seq_lens=starts.diff(),
        block_table=torch.zeros(num_runs, 1, dtype=torch.int32, device=device),
        slot_mapping=torch.full((num_rows,), -1, dtype=torch.int64, device=device),
        num_reqs=num_runs,
        num_tokens=num_rows,
        num_decodes=0,
        max_query_len=num_rows,
        max_seq_len=num_rows,
        prompts_are_new=True,
    )
    if angles is None:
        return AttendedRuns(plan.build_metadata(geometry), None)
    rows = torch.arange(num_rows, device=device)
    prologue = AttentionPrologue(rows, cos_sin_cache=angles, interleaved=interleaved, norm_eps=1e-6)
    return AttendedRuns(plan.build_metadata(geometry), prologue)


class PictureAttention(Layer):
    """``forward(x [T, hidden_size], runs) -> [T, hidden_size]``.

    Args:
        plan: see `plan_attention`.
        qkv: ``[T, hidden_size] -> [T, 3 * hidden_size]``: queries, keys and values.
        proj: what follows attention.
    """

    def __init__(self, plan: MixerPlan, qkv: Layer, proj: Layer) -> None:
        super().__init__()
        self._plan, self._shape = plan, plan.problem.out_shape
        self.qkv, self.proj = qkv, proj

    @classmethod
    def fused(
        cls,
        plan: MixerPlan,
        hidden_size: int,
        context: BuildContext,
        *,
        prefix: str,
        qkv: str = "qkv",
        proj: str = "proj",
    ) -> PictureAttention:
        """Queries, keys and values are one linear of the checkpoint; `qkv` and `proj` are the linears' names."""
        return cls(
            plan,
            ReplicatedLinear(hidden_size, 3 * hidden_size, context, prefix=f"{prefix}.{qkv}", bias=True),
            ReplicatedLinear(hidden_size, hidden_size, context, prefix=f"{prefix}.{proj}", bias=True),
        )

    @classmethod
    def split(
        cls, plan: MixerPlan, hidden_size: int, context: BuildContext, *, prefix: str, proj: str, bias: bool
    ) -> PictureAttention:
        """Queries, keys and values are `q_proj`, `k_proj` and `v_proj` of the checkpoint."""
        num_heads, head_dim = plan.problem.out_shape
        qkv = QKVParallelLinear(
            hidden_size,
            head_dim=head_dim,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=bias,
        )
        return cls(plan, qkv, ReplicatedLinear(hidden_size, hidden_size, context, prefix=f"{prefix}.{proj}", bias=bias))

    def forward(self, x: torch.Tensor, runs: AttendedRuns) -> torch.Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, *self._shape).unbind(1)
        attended = self._plan.forward((q, k, v), (), runs.metadata, prologue=runs.prologue)
        return self.proj(attended.view(len(x), -1))
