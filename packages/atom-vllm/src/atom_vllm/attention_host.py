"""vLLM's attention layer in the place of ours: it owns the cache, whoever attends in it."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.attention import AttentionPlan, AttentionProblem, AttentionPrologue, apply_prologue
from atom_models import BuildContext


class VllmAttentionHost:
    """`AttentionHost` over a layer that is known to vLLM by its name."""

    plan: AttentionPlan | None = None  # the cache is vLLM's

    def __init__(self, layer: Any, sinks: torch.Tensor | None) -> None:
        self.layer = layer
        self._sinks = sinks
        self._has_sinks = sinks is None

    def attend(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        *,
        prologue: AttentionPrologue | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        if not self._has_sinks and self._sinks is not None and sinks is not None:
            self._sinks.copy_(sinks)  # vLLM's layer was made before the weights came
            self._has_sinks = True
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        return self.layer(q_THD, k_TKD, v_TKD).view(q_THD.shape)


def attention_factory(vllm_config: Any) -> Callable[[AttentionProblem, str, BuildContext], VllmAttentionHost]:
    """`BuildContext.attention` inside of vLLM."""
    from vllm.model_executor.layers.attention import Attention

    def make(problem: AttentionProblem, layer_name: str, context: BuildContext) -> VllmAttentionHost:
        sinks = (
            torch.zeros(problem.num_heads, dtype=context.dtype, device=context.device) if problem.has_sinks else None
        )
        extras = {} if sinks is None else {"sinks": sinks}
        layer = Attention(
            problem.num_heads,
            problem.head_dim,
            problem.scale,
            num_kv_heads=problem.num_kv_heads,
            cache_config=vllm_config.cache_config,
            logits_soft_cap=problem.soft_cap,
            per_layer_sliding_window=problem.sliding_window,
            prefix=layer_name,
            **extras,
        )
        return VllmAttentionHost(layer, sinks)

    return make
