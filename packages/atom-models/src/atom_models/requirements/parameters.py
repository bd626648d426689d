"""How many weights a model has, and of which kinds: counted over its layers before they are loaded."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, fields

from torch import nn

from atom_models.layers import Experts, Linear, LMHead, Loadable
from atom_models.layers.mixture.moe import Router


@dataclass(frozen=True)
class Count:
    """Numbers of weights; the parts overlap.

    Attributes:
        parameters: all of them.
        linear: matrices of experts, and of linear layers but the head and routers: what is rounded while loading.
            Latent attention keeps the matrix that it absorbs (``kv_b_proj``) as plain numbers.
        linear_shapes: their shapes, and how many there are of each.
        idle: weights of experts that a token does not choose, with their biases.
        packed_bytes: the bytes of all in the number formats of the checkpoint, see `RankWeight`.
    """

    parameters: int = 0
    linear: int = 0
    linear_shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    idle: int = 0
    packed_bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def count_parameters(model: nn.Module) -> Count:
    """The weights that one rank holds; tied tables count once."""
    routers = {id(module.linear) for module in model.modules() if isinstance(module, Router)}
    layers = [module for module in model.modules() if isinstance(module, Loadable)]
    return sum((_count(layer, is_router=id(layer) in routers) for layer in layers), Count())


def _count(layer: Loadable, *, is_router: bool) -> Count:
    weights = layer.weights_on_rank()
    total, packed_bytes = sum(math.prod(one.shape) for one in weights), sum(one.packed_bytes for one in weights)
    if isinstance(layer, Experts):
        count = layer.problem.num_experts
        shapes = Counter({(one.shape[1], one.shape[2]): count for one in weights if len(one.shape) == 3})
        linear = sum(math.prod(shape) * number for shape, number in shapes.items())
        idle = total // count * (count - layer.problem.top_k)
        return Count(total, linear, shapes, idle, packed_bytes)
    if is_router or isinstance(layer, LMHead) or not isinstance(layer, Linear):
        return Count(parameters=total, packed_bytes=packed_bytes)
    matrices = [(one.shape[0], one.shape[1]) for one in weights if len(one.shape) == 2]
    return Count(
        parameters=total,
        linear=sum(map(math.prod, matrices)),
        linear_shapes=Counter(matrices),
        packed_bytes=packed_bytes,
    )
