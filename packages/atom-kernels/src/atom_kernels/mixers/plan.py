"""`select_mixer`: which backend runs a mixer here, over which cache layout, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from atom_kernels.mixers.backend import UnsuitableBackendError
from atom_kernels.operator import check_weights
from atom_kernels.platform import detect_platform

if TYPE_CHECKING:
    import torch

    from atom_kernels.mixers.backend import CacheConversion, HeldByMixer, MixerProblem, MixerRunner
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches


class UnsupportedMixerError(ValueError):
    """No backend can run the layer here, or none can use a layout that the host offers; the message says why."""


@dataclass(frozen=True)
class MixerPlan:
    """The choice made for one problem. Layers of equal problems may share a plan and its metadata.

    Attributes:
        problem: what was asked for.
        backend: name of what runs it.
        layout: what the host must allocate for every block.
        reasons: (backend, why it was passed over) of those tried before.
        kernels: what the backend calls, where it is made of kernels that have names.
        has_kernel: a kernel runs it, instead of the contract in plain torch.
        conversion: gives caches the layouts that the backend reads beside the problem's own.
        holds: how the backend keeps matrices; None where it keeps them as they are loaded.
    """

    problem: MixerProblem
    backend: str
    layout: CacheLayout
    reasons: tuple[tuple[str, str], ...]
    create: Callable[[], MixerRunner] = field(repr=False, compare=False)
    kernels: tuple[str, ...] = ()
    has_kernel: bool = True
    conversion: CacheConversion | None = field(default=None, repr=False, compare=False)
    holds: HeldByMixer | None = None

    @cached_property
    def runner(self) -> MixerRunner:
        """What runs it, made when it is first asked for: a plan can be explained where its backend is not installed."""
        return self.create()

    @property
    def capturable(self) -> bool:
        """A step may be captured in a graph, see `MixerRunner`."""
        return self.runner.capturable

    @property
    def recordable(self) -> bool:
        """The calls of a decode may be recorded, see `MixerRunner`."""
        return self.runner.recordable

    @property
    def captures_prompts(self) -> bool:
        """A captured step may have requests of many tokens, see `MixerRunner`."""
        return self.runner.captures_prompts

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """The weights as `forward` wants them.

        Args:
            weights: the weights that the problem has, by name; see the operator's contract. They may be kept.

        Raises:
            WeightError: a weight is missing, unknown, or of another shape or dtype; it names the weight.
        """
        return self.runner.prepare(check_weights(self.problem.name, self.problem.weights, weights))

    def build_metadata(self, geometry: BatchGeometry) -> Any:
        """What `forward` needs to know about one step; every layer of this plan takes the same, one after the other."""
        return self.runner.build_metadata(geometry)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: Any,
        *,
        weights: Any = None,
        prologue: Any = None,
    ) -> torch.Tensor:
        """Norm and rotate the raw inputs, write what is new to its slots, mix it with what is cached.

        Args:
            inputs: as the operator's contract lists them, ``[T, ...]`` each; they may be slices of one projection.
            caches: this layer's tensors, ``[num_blocks, *shape]`` of each entry of the layout; written in place.
            metadata: what `build_metadata` made of this step.
            weights: what `prepare` made of this layer's weights; None where the problem has none.
            prologue: norms and rotation, None for none.

        Returns:
            ``[T, *problem.out_shape]``, contiguous; rows of no request are zeros.
        """
        return self.runner.forward(inputs, caches, metadata, weights=weights, prologue=prologue)


def select_mixer(
    problem: MixerProblem,
    platform: Platform | None = None,
    offered: Sequence[CacheLayout] | None = None,
    *,
    only_backend: str | None = None,
) -> MixerPlan:
    """Choose the backend and the cache layout of a layer, once, when it is built.

    Args:
        problem: the layer.
        platform: where it runs; None probes this machine.
        offered: layouts that the host can give, None for any.
        only_backend: consider no other (``"aiter"``, ``"triton"``, ``"native"``, ``"torch"``, ``"reference"``).

    Raises:
        UnsupportedMixerError: nothing fits; it lists the reason of each backend.
    """
    platform = platform or detect_platform()
    usual = _agree_on_tensors(problem.layout, offered)
    layouts = None if offered is None else tuple(offered)
    reasons: list[tuple[str, str]] = []
    for backend in problem.backends:
        if only_backend is not None and only_backend != backend.name:
            continue
        try:
            layout = backend.agree_on_layout(problem, platform, layouts, usual)
        except UnsuitableBackendError as error:
            reasons.append((backend.name, str(error)))
            continue
        reasons += backend.passed_over(problem, platform, layout)
        return MixerPlan(
            problem=problem,
            backend=backend.name,
            layout=layout,
            reasons=tuple(reasons),
            create=partial(backend.create, problem, layout),
            kernels=backend.kernels.get(layout.name, ()),
            has_kernel=not backend.is_fallback,
            conversion=backend.conversion,
            holds=backend.holds(problem, platform),
        )
    known = ", ".join(backend.name for backend in problem.backends)
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons) or f"{only_backend!r} is not one of {known}"
    raise UnsupportedMixerError(f"nothing can run {problem} on {platform.name}: {tried}")


def usable_plans(problem: MixerProblem, platform: Platform | None = None) -> list[MixerPlan]:
    """A plan for each backend that can run `problem` here."""
    plans = []
    for backend in problem.backends:
        try:
            plans.append(select_mixer(problem, platform, only_backend=backend.name))
        except UnsupportedMixerError:
            continue
    return plans


def _agree_on_tensors(usual: CacheLayout, offered: Sequence[CacheLayout] | None) -> CacheLayout:
    """Our own layout where the host can give it, else one of the same tensors with other strides.

    Raises:
        UnsupportedMixerError: the host offers neither.
    """
    if offered is None or usual in offered:
        return usual
    parts = [(tensor.shape, tensor.dtype) for tensor in usual.tensors]
    for layout in offered:
        if [(tensor.shape, tensor.dtype) for tensor in layout.tensors] == parts:
            return layout
    given = ", ".join(f"{other.name} of {other.block_size} tokens" for other in offered) or "none"
    raise UnsupportedMixerError(
        f"attention needs the cache layout {usual.name} of {usual.block_size} tokens with tensors {parts}; "
        f"the host offers {given}"
    )
