"""Parts of transformers' layers, run by our operators where these compute the same on a CPU.

`probing` finds what a layer computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.contract import gated
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.linear import LINEAR
from atom_kernels.norm import RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_models.fallback.planned_attention import plan_attention
from atom_models.fallback.planned_layer import PlannedLayer, on_rows, product_of, stacked_parts
from atom_models.fallback.probing import SIZE, computes_the_same, rms_norm_of, with_parts
from atom_models.fallback.step_angles import AngleTables, is_rotary

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

_HALVES = ("gate_proj", "up_proj")
_ACTIVATIONS = (Activation.SILU, Activation.GELU, Activation.GELU_TANH)


def plan_layers(model: nn.Module, platform: Platform, num_positions: int | None = None) -> None:
    """Gives layers of `model` whose arithmetic our operators know a plan, which is bound once their weights came.

    Its tokens have `num_positions` positions; None is unknown, and angles are worked out at each step. On a GPU layers
    stay as they are: transformers' layers run uncaptured there, where a launch costs the same for all.
    """
    if platform.device != "cpu":
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            _plan_linear(module, platform)
    kept: set[nn.Module] = set()
    rotates = False
    for module in model.modules():
        _plan_gated(module, platform)
        norms = plan_attention(module, platform)
        rotates |= norms is not None
        kept.update(norms or ())
    if rotates and num_positions is not None:
        _plan_angles(model.get_decoder(), num_positions)  # pyright: ignore[reportCallIssue]
    for module in model.modules():
        if module not in kept:
            _plan_norm(module, platform)


def head_alone(causal: Any, head: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """`head`, where its results are the logits; None where `causal` makes more of hidden states than that.

    Args:
        causal: a causal model whose decoder gives back its `inputs_embeds`.
        head: its output embeddings.
    """
    name = next((name for name, one in causal._modules.items() if one is head), "")
    # Logits of another number could be cut where the few of a trial are not.
    if type(head) is not nn.Linear or not name or head.out_features != causal.config.get_text_config().vocab_size:
        return None
    with torch.random.fork_rng(devices=[]):
        few = nn.Linear(SIZE, SIZE)
    probe = with_parts(causal, modules={name: few})
    x = torch.linspace(-4, 4, 3 * SIZE).view(1, 3, SIZE)
    is_alone = computes_the_same(lambda x: probe(inputs_embeds=x, use_cache=False).logits, few, x)
    return head.__call__ if is_alone else None


def _plan_angles(decoder: nn.Module, num_positions: int) -> None:
    for module in decoder.modules():
        if is_rotary(module):
            module.forward = AngleTables(module, num_positions).forward


def _plan_linear(module: nn.Linear, platform: Platform) -> None:
    if (problem := product_of([module])) is not None:
        plan = select(LINEAR, problem, platform)
        PlannedLayer(plan, module, stacked_parts([module]), lambda bound: on_rows(bound, problem.out_features))


def _plan_gated(module: nn.Module, platform: Platform) -> None:
    """Gate and up become one product, if ``down(act(gate) * up)`` is all that the module does."""
    halves: list[Any] = [module._modules.get(name) for name in _HALVES]
    down: Any = module._modules.get("down_proj")
    if not all(type(one) is nn.Linear for one in (*halves, down)):
        return
    product, size = product_of(halves), halves[0].out_features
    if product is None or size != halves[1].out_features:
        return
    activation = _activation_of(module)
    if activation is None:
        return
    activate = select(GATED_ACTIVATION, GatedActivationProblem(size, product.dtype, activation), platform).prepare()

    def run_by(bound: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x: down(activate(bound(x.reshape(-1, x.shape[-1]))).view(*x.shape[:-1], size))

    PlannedLayer(select(LINEAR, product, platform), module, stacked_parts(halves), run_by)


def _activation_of(module: nn.Module) -> Activation | None:
    """The activation with which the module is a gated MLP; None if it is none."""
    with torch.random.fork_rng(devices=[]):
        gate, up, down = (nn.Linear(SIZE, SIZE) for _ in range(3))
    probe = with_parts(module, modules={"gate_proj": gate, "up_proj": up, "down_proj": down})
    x = torch.linspace(-4, 4, 3 * SIZE).view(1, 3, SIZE)

    def ours(x: torch.Tensor, activation: Activation) -> torch.Tensor:
        return down(gated(activation, gate(x), up(x)))

    return next((one for one in _ACTIVATIONS if computes_the_same(probe, partial(ours, activation=one), x)), None)


def _plan_norm(module: nn.Module, platform: Platform) -> None:
    if (norm := rms_norm_of(module)) is not None:
        weight: Any = module._parameters["weight"]
        plan = select(RMS_NORM, RMSNormProblem(weight.shape[0], weight.dtype, *norm), platform)
        PlannedLayer(plan, module, {"weight": [(module, "weight")]}, lambda bound: bound)
