"""vLLM's attention layer in the place of ours: it owns the cache, whoever attends in it."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.attention import AttentionPlan, AttentionProblem, AttentionPrologue, apply_prologue
from atom_models import BuildContext
from atom_vllm import compat


class VllmAttentionHost:
    """`AttentionHost` over a layer that is known to vLLM by its name.

    Args:
        layer: vLLM's.
        sinks: a tensor that it reads, to be filled when the weights come.
        is_direct: the layer's attention is ours and may take raw queries and keys, so that norms, rotation, cache and
            attention are one call. Eager steps go past vLLM's operator then.
    """

    plan: AttentionPlan | None = None  # the cache is vLLM's
    traceable = True  # vLLM's layer brings the operator at which vLLM splits graphs

    def __init__(self, layer: Any, sinks: torch.Tensor | None, *, is_direct: bool) -> None:
        from vllm.forward_context import get_forward_context

        self.layer = layer
        self._sinks = sinks
        self._is_direct = is_direct
        self._encoded_name = compat.encode_layer_name(layer.layer_name)
        self._step = get_forward_context

    def take_sinks(self, sinks: torch.Tensor) -> None:
        """They come with the weights; vLLM's layer was made before."""
        if self._sinks is not None:
            self._sinks.copy_(sinks)

    def attend(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        *,
        prologue: AttentionPrologue | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        layer = self.layer
        if self._is_direct and torch.compiler.is_compiling():
            if prologue is not None:
                out_THD = q_THD.new_empty(q_THD.shape)
                torch.ops.vllm.unified_attention_with_output(
                    q_THD, k_TKD, v_TKD, out_THD, self._encoded_name, prologue.positions
                )
                return out_THD
        elif self._is_direct:
            metadata = self._step().attn_metadata
            if metadata is None:  # vLLM measures memory
                return torch.zeros_like(q_THD, memory_format=torch.contiguous_format)
            if isinstance(metadata, dict):
                step = metadata[layer.layer_name]
                return layer.impl.attend(q_THD, k_TKD, v_TKD, layer.kv_cache, step, prologue)
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        return layer(q_THD, k_TKD, v_TKD).view(q_THD.shape)


def attention_factory(vllm_config: Any) -> Callable[[AttentionProblem, str, BuildContext], VllmAttentionHost]:
    """`BuildContext.attention` inside of vLLM."""
    from vllm.model_executor.layers.attention import Attention

    # Connectors save and load caches in vLLM's operator, and some graphs break at it.
    may_be_direct = vllm_config.kv_transfer_config is None and not compat.breaks_graphs_at_attention()

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
        is_direct = may_be_direct and hasattr(layer.impl, "attend") and not compat.calculates_scales(layer)
        return VllmAttentionHost(layer, sinks, is_direct=is_direct)

    return make
