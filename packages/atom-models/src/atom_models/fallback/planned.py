"""Linears, norms and gates of transformers' layers, run by our operators where these compute the same on a CPU.

What a layer computes is found by running it on a few numbers beside our operator, and never by its name alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.contract import gated
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.norm import RMS_NORM, RMSNormProblem, rms_norm
from atom_kernels.select import select
from atom_models.fallback.attention import LAYER

if TYPE_CHECKING:
    from atom_kernels.plan import Plan
    from atom_kernels.platform import Platform

_SIZE = 8
_TOLERANCE = 1e-5
_HALVES = ("gate_proj", "up_proj")
_ACTIVATIONS = (Activation.SILU, Activation.GELU, Activation.GELU_TANH)
# (module, name) of each parameter that an operator takes, by what the operator calls it.
_Parts = Mapping[str, Sequence[tuple[nn.Module, str]]]


def plan_layers(model: nn.Module, platform: Platform) -> None:
    """Gives layers of `model` whose arithmetic our operators know a plan, which is bound once their weights came.

    On a GPU they stay as they are: transformers' layers run uncaptured there, where a launch costs the same for all.
    """
    if platform.device != "cpu":
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            _plan_linear(module, platform)
    for module in model.modules():
        _plan_gated(module, platform)
        _plan_norm(module, platform)


class PlannedLayer:
    """Takes the parameters of a layer as they are loaded, and with the last of them makes it run its plan.

    Args:
        parts: the parameters; several of one part are stacked.
        run_by: the bound plan -> the layer's `forward`.
    """

    def __init__(self, plan: Plan, module: nn.Module, parts: _Parts, run_by: Callable[[Any], Any]) -> None:
        self._plan, self._module, self._parts, self._run_by = plan, module, parts, run_by
        self._loaded: dict[tuple[nn.Module, str], torch.Tensor] = {}
        for owner in {place[0] for places in parts.values() for place in places}:
            setattr(owner, LAYER, _Owner(self, owner))

    def take(self, place: tuple[nn.Module, str], parameter: torch.Tensor) -> None:
        self._loaded[place] = parameter.detach()
        if len(self._loaded) < sum(map(len, self._parts.values())):
            return
        loaded, self._loaded = self._loaded, {}
        weights: dict[str, torch.Tensor] = {}
        for part, places in self._parts.items():
            weights[part] = torch.cat([loaded[one] for one in places]) if len(places) > 1 else loaded[places[0]]
        bound = self._plan.prepare(weights)
        # The plan has what it needs, and may have packed it: shapes and dtypes are all that the layers still ask for.
        for owner, name in loaded:
            owner._parameters[name] = nn.Parameter(loaded[owner, name].to("meta"), requires_grad=False)
        # An attribute of the instance: what calls the layer still goes through its hooks.
        self._module.forward = self._run_by(bound)


class _Owner:
    """A module, some of whose parameters belong to a plan."""

    def __init__(self, layer: PlannedLayer, module: nn.Module) -> None:
        self._layer, self._module = layer, module

    def take_parameter(self, name: str, parameter: torch.Tensor) -> None:
        """A parameter of the module was loaded."""
        self._layer.take((self._module, name), parameter)


def _plan_linear(module: nn.Linear, platform: Platform) -> None:
    problem = _product([module])
    parts = {name: [(module, name)] for name in ("weight", "bias")[: 1 + problem.bias]}
    PlannedLayer(select(LINEAR, problem, platform), module, parts, lambda bound: _on_rows(bound, problem.out_features))


def _product(stacked: list[nn.Linear]) -> LinearProblem:
    first, outputs = stacked[0], sum(one.out_features for one in stacked)
    return LinearProblem(first.in_features, outputs, first.weight.dtype, first.bias is not None)


def _on_rows(bound: Callable[..., torch.Tensor], out_features: int) -> Callable[..., torch.Tensor]:
    """An operator takes rows, and transformers gives it a batch of one row of tokens."""
    return lambda x: bound(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], out_features)


def _plan_gated(module: nn.Module, platform: Platform) -> None:
    """Gate and up become one product, if ``down(act(gate) * up)`` is all that the module does."""
    halves: list[Any] = [module._modules.get(name) for name in _HALVES]
    down: Any = module._modules.get("down_proj")
    if not all(type(one) is nn.Linear for one in (*halves, down)):
        return
    if _product(halves[:1]) != _product(halves[1:]):
        return
    activation = _activation_of(module)
    if activation is None:
        return
    size, product = halves[0].out_features, _product(halves)
    activate = select(GATED_ACTIVATION, GatedActivationProblem(size, product.dtype, activation), platform).prepare()

    def run_by(bound: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x: down(activate(bound(x.reshape(-1, x.shape[-1]))).view(*x.shape[:-1], size))

    names = ("weight", "bias")[: 1 + product.bias]
    parts = {name: [(half, name) for half in halves] for name in names}
    PlannedLayer(select(LINEAR, product, platform), module, parts, run_by)


def _activation_of(module: nn.Module) -> Activation | None:
    """The activation with which the module is a gated MLP; None if it is none."""
    with torch.random.fork_rng(devices=[]):
        gate, up, down = (nn.Linear(_SIZE, _SIZE) for _ in range(3))
    probe = _with(module, modules={"gate_proj": gate, "up_proj": up, "down_proj": down})
    x = torch.linspace(-4, 4, 3 * _SIZE).view(1, 3, _SIZE)

    def ours(x: torch.Tensor, activation: Activation) -> torch.Tensor:
        return down(gated(activation, gate(x), up(x)))

    return next((one for one in _ACTIVATIONS if _same(probe, partial(ours, activation=one), x)), None)


def _plan_norm(module: nn.Module, platform: Platform) -> None:
    weight = module._parameters.get("weight")
    if not type(module).__name__.endswith("RMSNorm") or len(module._parameters) > 1 or weight is None:
        return
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if module._modules or weight.dim() != 1 or not isinstance(eps, float):
        return
    few = nn.Parameter(torch.linspace(0.5, 2, _SIZE), requires_grad=False)
    probe, x = _with(module, parameters={"weight": few}), torch.linspace(-3, 5, 3 * _SIZE).view(1, 3, _SIZE) * eps**0.5
    for offset in (0.0, 1.0):
        if _same(probe, partial(rms_norm, weight_D=few, eps=eps, weight_offset=offset), x):
            plan = select(RMS_NORM, RMSNormProblem(weight.shape[0], weight.dtype, eps, offset), platform)
            PlannedLayer(plan, module, {"weight": [(module, "weight")]}, lambda bound: bound)


def _with(module: nn.Module, *, modules: dict[str, Any] | None = None, parameters: dict[str, Any] | None = None) -> Any:
    """The module with other parts in the place of its own."""
    probe = copy.copy(module)
    probe._modules = {**module._modules, **(modules or {})}
    probe._parameters = {**module._parameters, **(parameters or {})}
    return probe


def _same(theirs: Any, ours: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    """Whether they give the same for small numbers, where activations bend, and for large ones, which some bound."""
    try:
        with torch.no_grad():
            pairs = [(theirs(factor * x), ours(factor * x)) for factor in (1, 1000)]
    except Exception:  # whatever a layer of theirs raises says that it is another kind of layer
        return False
    return all(bool((found - known).abs().max() <= _TOLERANCE * known.abs().max()) for found, known in pairs)
