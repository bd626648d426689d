"""A layer of transformers that runs a plan of ours in the place of its own code, once its parameters are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.linear import LinearProblem
from atom_models.fallback.attention import LAYER

if TYPE_CHECKING:
    from atom_kernels.plan import Plan

# (module, name) of each parameter that an operator takes, by what the operator calls it.
Parts = Mapping[str, Sequence[tuple[nn.Module, str]]]


class PlannedLayer:
    """Takes the parameters of a layer as they are loaded, and with the last of them makes it run its plan.

    Args:
        parts: the parameters; several of one part are stacked.
        run_by: the bound plan -> the layer's `forward`.
    """

    def __init__(self, plan: Plan, module: nn.Module, parts: Parts, run_by: Callable[[Any], Any]) -> None:
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


def product_of(stacked: Sequence[nn.Linear]) -> LinearProblem | None:
    """The one product of linears that read the same rows; None where a stack cannot hold them."""
    first, outputs = stacked[0], sum(one.out_features for one in stacked)
    if len({(one.in_features, one.weight.dtype, one.bias is None) for one in stacked}) > 1:
        return None
    return LinearProblem(first.in_features, outputs, first.weight.dtype, first.bias is not None)


def stacked_parts(stacked: Sequence[nn.Linear]) -> Parts:
    """The parameters of that product."""
    names = ("weight", "bias")[: 1 + (stacked[0].bias is not None)]
    return {name: [(one, name) for one in stacked] for name in names}


def on_rows(bound: Callable[..., torch.Tensor], out_features: int) -> Callable[..., torch.Tensor]:
    """An operator takes rows, and transformers gives it a batch of one row of tokens."""
    return lambda x: bound(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], out_features)
