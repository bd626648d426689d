"""vLLM's layers in the place of ours: they own the caches, whoever attends in them."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from atom_kernels.attention import AttentionProblem, apply_prologue
from atom_kernels.attention.context import PartialMlaProblem
from atom_kernels.attention.mla import MlaProblem
from atom_kernels.delta import DeltaNetProblem
from atom_kernels.mixers import MixerPlan, MixerProblem
from atom_models import BuildContext, mixer_layers
from atom_vllm import compat
from atom_vllm.mixers.kernels import AtomKernels
from atom_vllm.models.compiled import is_compiled


class VllmHost:
    """`MixerHost` over a layer that is known to vLLM by its name.

    Args:
        layer: vLLM's.
        problem: what it is.
        take_weights: gives it the weights of our model's layer.
        is_direct: the layer's attention is ours and may take raw inputs, so that norms, rotation, cache and attention
            are one call. Eager steps go past vLLM's operator then.
    """

    plan: MixerPlan | None = None  # the cache is vLLM's
    traceable = True  # vLLM's layer brings the operator at which vLLM splits graphs

    def __init__(
        self,
        layer: Any,
        problem: MixerProblem,
        take_weights: Callable[[Mapping[str, torch.Tensor]], None],
        *,
        is_direct: bool,
    ) -> None:
        from vllm.forward_context import get_forward_context

        self.layer = layer
        self._take_weights = take_weights
        self._out_shape, self._out_dtype = problem.out_shape, getattr(torch, problem.out_dtype)
        self._is_direct = is_direct
        self._encoded_name = compat.encode_layer_name(layer.layer_name)
        self._step = get_forward_context

    def take_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The weights of our model's layer, by name."""
        self._take_weights(weights)

    def mix(self, inputs: tuple[torch.Tensor, ...], prologue: Any) -> torch.Tensor:
        layer = self.layer
        if self._is_direct and torch.compiler.is_compiling():
            return self._mix_in_operator(inputs, None if prologue is None else prologue.positions)
        elif self._is_direct:
            metadata = self._step().attn_metadata
            if metadata is None:  # vLLM measures memory
                return inputs[0].new_zeros((inputs[0].shape[0], *self._out_shape), dtype=self._out_dtype)
            if isinstance(metadata, dict):
                return layer.impl.mix(inputs, layer.kv_cache, metadata[layer.layer_name], prologue)
        q_THD, k_TKD, v_TKD = inputs
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        return layer(q_THD, k_TKD, v_TKD).view(q_THD.shape)

    def _mix_in_operator(self, inputs: tuple[torch.Tensor, ...], positions: torch.Tensor | None) -> torch.Tensor:
        """vLLM's operator takes keys and values; latents are both. Positions come where it has a scale, see there.

        Delta nets give it all three in one, and what makes decays and betas.
        """
        query, key, value = inputs[0], inputs[1], inputs[-1]
        out = query.new_empty((query.shape[0], *self._out_shape), dtype=self._out_dtype)
        torch.ops.vllm.unified_attention_with_output(query, key, value, out, self._encoded_name, positions)
        return out


def mixer_host_factory(vllm_config: Any) -> Callable[[Any, str, BuildContext], VllmHost]:
    """`BuildContext.mixer_host` inside of vLLM."""
    # Connectors save and load caches in vLLM's operator, and some graphs break at it. In traced models it has a place
    # for positions, and none for the angles of three of them.
    may_be_direct = (
        vllm_config.kv_transfer_config is None
        and not compat.breaks_graphs_at_attention()
        and not (vllm_config.model_config.uses_mrope and is_compiled(vllm_config))
    )

    # The operator's name decides, since each kind of layer has a class of its own in vLLM.
    hosts = {
        AttentionProblem.name: partial(_paged_host, vllm_config=vllm_config, may_be_direct=may_be_direct),
        MlaProblem.name: partial(_latent_host, vllm_config=vllm_config),
        PartialMlaProblem.name: partial(_latent_host, vllm_config=vllm_config),
        DeltaNetProblem.name: partial(_state_host, vllm_config=vllm_config),
    }

    def make(problem: Any, layer_name: str, context: BuildContext) -> VllmHost:
        host = hosts.get(problem.name)
        if host is None:
            known = " and ".join(hosts)
            raise ValueError(f"{layer_name} is {problem.name}; vLLM keeps caches for {known} here: use `atom serve`")
        return host(problem, layer_name, context)

    return make


def _latent_host(problem: MlaProblem, layer_name: str, context: BuildContext, *, vllm_config: Any) -> VllmHost:
    from atom_vllm.mixers.latent_attention import LatentLayer

    layer = LatentLayer(problem, layer_name, vllm_config)
    return VllmHost(layer, problem, layer.impl.take_weights, is_direct=True)


def _state_host(problem: DeltaNetProblem, layer_name: str, context: BuildContext, *, vllm_config: Any) -> VllmHost:
    from atom_vllm.mixers.state_layer import StateLayer

    layer = StateLayer(problem, layer_name, vllm_config)
    return VllmHost(layer, problem, layer.impl.take_weights, is_direct=True)


def _paged_host(
    problem: AttentionProblem, layer_name: str, context: BuildContext, *, vllm_config: Any, may_be_direct: bool
) -> VllmHost:
    from vllm.model_executor.layers.attention import Attention

    # vLLM's layer is made before the weights come: it reads this tensor, which is filled then.
    sinks = torch.zeros(problem.num_heads, dtype=context.dtype, device=context.device) if problem.has_sinks else None
    layer = Attention(
        problem.num_heads,
        problem.head_dim,
        problem.scale,
        num_kv_heads=problem.num_kv_heads,
        cache_config=vllm_config.cache_config,
        logits_soft_cap=problem.soft_cap,
        per_layer_sliding_window=problem.sliding_window,
        prefix=layer_name,
        **({} if sinks is None else {"sinks": sinks}),
    )

    def take_weights(weights: Mapping[str, torch.Tensor]) -> None:
        if sinks is not None:
            sinks.copy_(weights["sinks"])

    is_direct = may_be_direct and isinstance(layer.impl, AtomKernels) and not compat.calculates_scales(layer)
    return VllmHost(layer, problem, take_weights, is_direct=is_direct)


def connect_layers(model: nn.Module, vllm_config: Any) -> None:
    """Let our attention behind vLLM's operator find the layers of `model`."""
    known = vllm_config.compilation_config.static_forward_context
    for name, layer in mixer_layers(model).items():
        if isinstance(known[name].impl, AtomKernels):
            known[name].impl.owner = layer
