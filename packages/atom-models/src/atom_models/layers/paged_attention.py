"""What attends behind an `Attention` layer: by default, a kernel over a paged cache that the forward context holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_kernels.attention import AttentionPlan, AttentionProblem, AttentionPrologue, select_attention
from atom_kernels.attention.mla import MlaPlan, MlaProblem, MlaPrologue, select_mla
from atom_models.forward_context import attend_in_step, get_forward_context

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class AttentionHost(Protocol):
    """Runs attention for one layer, in the way of whoever owns the cache.

    A `traceable` host brings operators of its own for torch.compile, which then sees what is around them; the others
    are one opaque op.
    """

    plan: AttentionPlan | None
    traceable: bool

    def take_sinks(self, sinks: torch.Tensor) -> None:
        """The layer's sinks ``[num_heads]``, for hosts that want them before the first step."""
        ...

    def attend(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        *,
        prologue: AttentionPrologue | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Norms and rotates raw q and k, writes k and v to the cache, and attends -> ``[T, num_heads, head_dim]``."""
        ...


class PagedAttention:
    """Attention over the pages of the forward context, through the plan that fits the platform."""

    traceable = False

    def __init__(self, plan: AttentionPlan, layer_name: str) -> None:
        self.plan: AttentionPlan | None = plan
        self._forward = plan.runner.forward
        self._name = layer_name

    def take_sinks(self, sinks: torch.Tensor) -> None:
        """They come with each call."""

    def attend(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        *,
        prologue: AttentionPrologue | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        def attend(*inputs: torch.Tensor) -> torch.Tensor:
            context, name = get_forward_context(), self._name
            return self._forward(
                *inputs, context.kv_caches[name], context.metadata[name], prologue=prologue, sinks=sinks
            )

        return attend_in_step(attend, (q_THD, k_TKD, v_TKD), q_THD.shape)


def paged_attention(problem: AttentionProblem, layer_name: str, context: BuildContext) -> PagedAttention:
    """The default attention factory of `BuildContext`."""
    return PagedAttention(select_attention(problem, context.platform), layer_name)


class MlaHost(Protocol):
    """Runs latent attention for one layer, in the way of whoever owns the cache; `traceable` as in `AttentionHost`."""

    plan: MlaPlan | None
    traceable: bool

    def prepare(self, kv_b_weight: torch.Tensor) -> Any:
        """The weights as `attend` wants them; see `MlaPlan.prepare`."""
        ...

    def attend(self, q_THD: torch.Tensor, kv_TC: torch.Tensor, weights: Any, *, prologue: MlaPrologue) -> torch.Tensor:
        """Norms and rotates raw latents and queries, writes the cache, and attends -> ``[T, H, v_head_dim]``."""
        ...


class PagedMla:
    """Latent attention over the pages of the forward context, through the plan that fits the platform."""

    traceable = False

    def __init__(self, plan: MlaPlan, layer_name: str) -> None:
        self.plan: MlaPlan | None = plan
        self.prepare = plan.prepare
        self._forward = plan.runner.forward
        self._name, self._value_dim = layer_name, plan.problem.v_head_dim

    def attend(self, q_THD: torch.Tensor, kv_TC: torch.Tensor, weights: Any, *, prologue: MlaPrologue) -> torch.Tensor:
        def attend(*inputs: torch.Tensor) -> torch.Tensor:
            context, name = get_forward_context(), self._name
            return self._forward(*inputs, weights, context.kv_caches[name], context.metadata[name], prologue=prologue)

        return attend_in_step(attend, (q_THD, kv_TC), (*q_THD.shape[:2], self._value_dim))


def paged_mla(problem: MlaProblem, layer_name: str, context: BuildContext) -> PagedMla:
    """The default factory of latent attention of `BuildContext`."""
    return PagedMla(select_mla(problem, context.platform), layer_name)
