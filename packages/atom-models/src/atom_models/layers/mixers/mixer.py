"""`Mixer`: the one kind of layer that remembers earlier tokens, and what runs it.

A host may be any engine that owns the cache: by default it is a plan over the caches of the forward context.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from atom_kernels.formats import Plain
from atom_kernels.mixers import MixerPlan, MixerProblem, UnsupportedMixerError, select_mixer
from atom_models.forward_context import get_forward_context, mix_in_step
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.layers.weights import HeldWeights, RankWeight, Weights

if TYPE_CHECKING:
    from atom_kernels.operator import WeightSpec
    from atom_models.build_context import BuildContext
    from atom_models.layers.matrices import MatrixStack
    from atom_models.layers.mixers.cache_scales import CacheScaleWeights

# Weights of a problem that checkpoints hold as scales of the cache.
CACHE_SCALES = ("key_scale", "value_scale", "latent_scale")
# What a traced model calls for each mixer, unless its host brings an operator of its own.
MIX_OPERATOR = "atom_models::mix"


class MixerHost(Protocol):
    """Runs one mixer, in the way of whoever owns its cache.

    Attributes:
        plan: the kernel and its cache layout; None where another engine owns the cache.
        traceable: it brings operators of its own for torch.compile, which then sees what is around them.
    """

    plan: MixerPlan | None
    traceable: bool

    def take_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The weights of the layer's problem, by name, once they are loaded."""
        ...

    def mix(self, inputs: tuple[torch.Tensor, ...], prologue: Any) -> torch.Tensor:
        """See `MixerPlan.forward`: ``[T, *problem.out_shape]``."""
        ...


class Mixer(WeightedLayer):
    """``forward(*inputs) -> [T, out_features]``, raw inputs ``[T, ...]``, causal, over everything cached so far.

    Args:
        problem: what the layer is, on this rank.
        prefix: the layer's name, by which hosts know its cache and traced models call it.
        context: gives it its host.
        cache_scales: loads those weights of the problem that are scales of its cache; None if there are none.

    Attributes:
        name: as `prefix`.
        problem: what the layer is, on this rank.
        linears: the problem's weights that checkpoints hold as linears, each with the linear's name.
        other_names: names, after the parent's, of other weights that checkpoints call otherwise than the problem does.
        shares_context: ranks may keep a part each of what it remembers.

    Raises:
        ValueError: they are to, and cannot.
    """

    linears: ClassVar[Mapping[str, str]] = {}
    other_names: ClassVar[Mapping[str, str]] = {}
    shares_context: ClassVar[bool] = False

    def __init__(
        self,
        problem: MixerProblem,
        *,
        prefix: str,
        context: BuildContext,
        cache_scales: CacheScaleWeights | None = None,
    ) -> None:
        super().__init__(context)
        if (size := context.groups.context.size) > 1 and not self.shares_context:
            raise ValueError(
                f"{prefix}: {problem.name} cannot share its context among {size} ranks, which latent attention alone "
                "can: leave out decode_context_parallel_size"
            )
        self._cache_scales = cache_scales
        self.name, self.problem = prefix, problem
        self._host = context.mixer_host(problem, prefix, context)
        self._out_features, self._out_dtype = math.prod(problem.out_shape), getattr(torch, problem.out_dtype)
        parent = prefix.rpartition(".")[0]
        for slot, spec in problem.weights.items():
            if slot not in CACHE_SCALES:
                self.expect_weight(parent, slot, spec)

    def expect_weight(self, parent: str, slot: str, spec: WeightSpec) -> None:
        """Announces what the checkpoint holds of one weight of the problem, of which `spec` is this rank's part."""
        num_ranks = self._context.collectives.size
        rows, *columns = (spec.shape[0] * num_ranks, *spec.shape[1:])
        if slot in self.linears:
            self.expect_matrix(f"{parent}.{self.linears[slot]}", (rows, spec.shape[1]), slot=slot)
        else:
            name = f"{parent}.{self.other_names.get(slot, slot)}"
            self.expect(name, (rows, *columns), slot=slot, dtype=spec.dtype, num_pieces=num_ranks)

    @property
    def plan(self) -> MixerPlan | None:
        """The kernel and its cache layout; None where another engine owns the cache."""
        return self._host.plan

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and not self._host.traceable:
            return torch.ops.atom_models.mix(inputs, self.name, self._out_features, self._out_dtype)
        return self.mix(*inputs)

    def weights(self) -> list[Weights]:
        scales = [] if self._cache_scales is None else [Weights(self._cache_scales.expected, ())]
        return super().weights() + scales

    def weights_of(self, stack: MatrixStack) -> Weights:
        """A matrix that is kept as plain numbers, however it is stored."""
        [matrix], form = stack.matrices, Plain(self._context.dtype)
        num_bytes = math.prod(stack.shape) * form.dtype.itemsize
        return Weights(
            stack.expected,
            [RankWeight(stack.shape, num_bytes)],
            lambda: self._held(form.name, num_bytes),
            names=(matrix.name,),
            layouts=(matrix.layout,),
            asked=matrix.name,
        )

    def _held(self, form: str, num_bytes: int) -> HeldWeights:
        plan = self.plan
        if plan is None or plan.holds is None:
            return HeldWeights(form, self.problem.name, () if plan is None else (plan.backend,), ("source",), num_bytes)
        holds = plan.holds
        return HeldWeights(form, self.problem.name, holds.kernels, holds.layouts, num_bytes + holds.more_bytes)

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        if self._cache_scales is not None and name in self._cache_scales.expected():
            self._cache_scales.load(name, tensor)
        else:
            super().load_shard(name, tensor)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        if self._cache_scales is not None:
            weights = weights | self._cache_scales.take()
        if weights:
            self._host.take_weights(weights)

    @abstractmethod
    def mix(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the opaque operator runs."""


class PlannedHost:
    """Runs the plan that fits the platform, over the caches of the forward context."""

    traceable = False

    def __init__(self, plan: MixerPlan, layer_name: str) -> None:
        self.plan: MixerPlan | None = plan
        self._prepare, self._forward = plan.prepare, plan.runner.forward
        self._name, self._out_shape = layer_name, plan.problem.out_shape
        self._out_dtype = getattr(torch, plan.problem.out_dtype)
        self._weights: Any = None

    def take_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = self._prepare(weights)

    def mix(self, inputs: tuple[torch.Tensor, ...], prologue: Any) -> torch.Tensor:
        def mix(*inputs: torch.Tensor) -> torch.Tensor:
            context, name = get_forward_context(), self._name
            return self._forward(
                inputs, context.kv_caches[name], context.metadata[name], weights=self._weights, prologue=prologue
            )

        return mix_in_step(mix, inputs, (inputs[0].shape[0], *self._out_shape), self._out_dtype)


def planned_host(problem: MixerProblem, layer_name: str, context: BuildContext) -> PlannedHost:
    """The default of `BuildContext.mixer_host`.

    Raises:
        UnsupportedMixerError: the cache is to be in fp8, and no kernel here reads one.
    """
    plan = select_mixer(problem, context.platform)
    if not plan.has_kernel and problem.cache.is_float8:
        reasons = "; ".join(f"{backend}: {reason}" for backend, reason in plan.reasons)
        raise UnsupportedMixerError(
            f"{layer_name}: no kernel here reads a cache of {problem.cache.name} ({reasons}): choose another "
            "kv_cache_dtype, such as auto"
        )
    return PlannedHost(plan, layer_name)


@torch.library.custom_op(MIX_OPERATOR, mutates_args=())
def _mix(inputs: Sequence[torch.Tensor], layer: str, out_features: int, out_dtype: torch.dtype) -> torch.Tensor:
    return get_forward_context().mixer(layer).mix(*inputs)


@_mix.register_fake
def _(inputs: Sequence[torch.Tensor], layer: str, out_features: int, out_dtype: torch.dtype) -> torch.Tensor:
    return inputs[0].new_empty(inputs[0].shape[0], out_features, dtype=out_dtype)
