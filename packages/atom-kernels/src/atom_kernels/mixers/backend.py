"""What a mixer is made of: its problem, the backends that can run it, and what a backend makes for one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from atom_kernels.mixers.cache_format import NO_SCALES
from atom_kernels.operator import any_problem

if TYPE_CHECKING:
    import torch

    from atom_kernels.mixers.cache_format import CacheFormat
    from atom_kernels.mixers.requests import Requests
    from atom_kernels.operator import WeightSpec, Work
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches, GroupSpec


class UnsuitableBackendError(ValueError):
    """A backend cannot run a layer; the message is the reason."""


class MixerProblem(Protocol):
    """Shapes and rules of one layer, as this rank sees it. Frozen and hashable: layers of equal problems share work.

    Attributes:
        name: the operator's name.
    """

    name: ClassVar[str]

    @property
    def dtype(self) -> str:
        """The dtype of inputs, by torch name."""
        ...

    @property
    def cache(self) -> CacheFormat:
        """How numbers are cached; the layout follows from it."""
        ...

    @property
    def kv_cache_dtype(self) -> str:
        """The dtype of what is cached, by torch name."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of one cache block."""
        ...

    @property
    def keeps(self) -> GroupSpec:
        """What it remembers of a request."""
        ...

    @property
    def layout(self) -> CacheLayout:
        """The cache that every backend can read unless it says otherwise."""
        ...

    def work(self, requests: Requests) -> Work:
        """The least that a step of these requests must do, its own weights read included."""
        ...

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of one token's output."""
        ...

    @property
    def out_dtype(self) -> str:
        """The dtype of outputs, by torch name."""
        ...

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """The weights that `MixerPlan.prepare` takes."""
        ...

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        ...


class MixerRunner(Protocol):
    """What runs one layer: weights once, metadata once a step, `forward` once a layer and step.

    Attributes:
        capturable: it reads every length on the device and never waits for it: a step, `build_metadata` included, may
            be captured in a graph and replayed over other contents of the same geometry tensors.
        recordable: all that decodes call is in C and reads every length there, so that the calls may be recorded, and
            made again over other contents of the same geometry tensors.
        captures_prompts: a captured step may have requests of many tokens, and not take far more memory for it.
    """

    capturable: bool = False
    recordable: bool = False
    captures_prompts: bool = True

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> Any:
        """See `MixerPlan.prepare`; unless a runner packs it, the one weight as it is, or None where there is none."""
        return next(iter(weights.values()), None)

    def build_metadata(self, geometry: BatchGeometry) -> Any:
        """See `MixerPlan.build_metadata`."""
        ...

    def forward(
        self, inputs: tuple[torch.Tensor, ...], caches: Caches, metadata: Any, *, weights: Any, prologue: Any
    ) -> torch.Tensor:
        """See `MixerPlan.forward`."""
        ...


def reads_the_usual_layout(problem: Any, platform: Platform) -> tuple[CacheLayout, ...]:
    return (problem.layout,)


def reads_contiguous_blocks(problem: Any, platform: Platform) -> str | None:
    return "reads contiguous blocks only"


def reads_any_strides(problem: Any, platform: Platform) -> str | None:
    return None


def nothing_passed_over(problem: Any, platform: Platform, layout: CacheLayout) -> tuple[tuple[str, str], ...]:
    return ()


class CacheConversion(NamedTuple):
    """The way from caches of a problem's own layout to those of another one, and back; only checks need it.

    Attributes:
        from_usual: ``(layout, *caches)`` -> caches of that layout which hold the same.
        to_usual: ``(layout, caches)`` -> caches of the problem's own layout which hold the same.
    """

    from_usual: Callable[..., Caches]
    to_usual: Callable[[CacheLayout, Caches], Caches]


class HeldByMixer(NamedTuple):
    """How a backend keeps the matrices of a problem, where it keeps more than what is loaded.

    Attributes:
        more_bytes: bytes of what it keeps besides.
        kernels: what multiplies by it, by backend and name.
        layouts: the names of all that is kept.
        note: what to tell who serves, where they have asked for numbers that are rounded.
    """

    more_bytes: int
    kernels: tuple[str, ...]
    layouts: tuple[str, ...]
    note: str | None = None


def held_as_loaded(problem: Any, platform: Platform) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class MixerBackend:
    """One way to run a mixer.

    Attributes:
        name: ``"aiter"``, ``"triton"``, ``"native"``, ``"torch"`` or ``"reference"``.
        create: ``(problem, layout) -> MixerRunner``. Heavy imports belong in here.
        supports: ``(problem, platform) -> None`` if it can run the problem there, else the reason why not.
        layouts: ``(problem, platform)`` -> the layouts that it reads, best first.
        why_not_strided: ``(problem, platform) -> None`` if its blocks may lie at any strides, else the reason why not.
        passed_over: ``(problem, platform, layout)`` -> (name, reason) of kernels that it might have taken instead.
        cache_scales: the kinds of `CacheFormat.scales` that it reads and writes.
        is_fallback: it is the contract in plain torch, which is right everywhere and many times slower than a kernel.
        kernels: the kernels that it calls, where they have names, by the name of the layout that they read.
        conversion: gives caches the layouts that it reads beside the problem's own; None where there are none.
        holds: ``(problem, platform)`` -> how it keeps matrices; None where it keeps them as they are loaded.
    """

    name: str
    create: Callable[[Any, CacheLayout], MixerRunner]
    supports: Callable[[Any, Platform], str | None] = any_problem
    layouts: Callable[[Any, Platform], tuple[CacheLayout, ...]] = reads_the_usual_layout
    why_not_strided: Callable[[Any, Platform], str | None] = reads_contiguous_blocks
    passed_over: Callable[[Any, Platform, CacheLayout], tuple[tuple[str, str], ...]] = nothing_passed_over
    cache_scales: tuple[str, ...] = (NO_SCALES,)
    is_fallback: bool = False
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conversion: CacheConversion | None = None
    holds: Callable[[Any, Platform], HeldByMixer | None] = held_as_loaded

    def why_not(self, problem: MixerProblem, platform: Platform) -> str | None:
        """None if it can run the problem there, else the reason why not."""
        reason = platform.why_not(self.name)
        if reason is None and problem.cache.scales not in self.cache_scales:
            return f"reads a cache with scales {' or '.join(self.cache_scales)}, not with scales {problem.cache.scales}"
        return reason or self.supports(problem, platform)

    def agree_on_layout(
        self, problem: MixerProblem, platform: Platform, offered: tuple[CacheLayout, ...] | None, usual: CacheLayout
    ) -> CacheLayout:
        """The layout that it reads, of those `offered`.

        Args:
            usual: the problem's own layout, or one of the same tensors with the strides that the host wants.

        Raises:
            UnsuitableBackendError: it cannot run the problem there, or reads no layout that the host offers.
        """
        reason = self.why_not(problem, platform)
        is_strided = any(tensor.strides is not None for tensor in usual.tensors)
        if reason is None and is_strided:
            reason = self.why_not_strided(problem, platform)
        if reason is not None:
            raise UnsuitableBackendError(reason)
        if is_strided:
            return usual
        wanted = self.layouts(problem, platform)
        for layout in wanted:
            if layout == usual or offered is None or layout in offered:
                return layout
        names = " or ".join(layout.name for layout in wanted)
        raise UnsuitableBackendError(f"reads the layout {names}, which the host does not offer")
