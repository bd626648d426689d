"""`select_attention`: which backend runs an attention layer here, over which cache layout, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from atom_kernels.aiter.attention import paged_backend
from atom_kernels.attention import native_backend, reference, torch_backend, triton_backend
from atom_kernels.platform import detect_platform

if TYPE_CHECKING:
    import torch

    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout

# In the order in which they are tried.
BACKENDS = (paged_backend, triton_backend, native_backend, torch_backend, reference)


class UnsupportedAttentionError(ValueError):
    """No backend can run the layer here, or none can use a layout that the host offers; the message says why."""


class AttentionBackend(Protocol):
    """What runs one layer: metadata once a step, `forward` once a layer and step.

    A backend with an attribute `capturable` that is true reads every length on the device and never waits for it: a
    step, `build_metadata` included, may be captured in a graph and replayed over other contents of the same geometry
    tensors.
    """

    def build_metadata(self, geometry: BatchGeometry) -> Any: ...
    def forward(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: Any,
        *,
        prologue: AttentionPrologue | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class AttentionPlan:
    """The choice made for one problem. Layers of equal problems may share a plan and its metadata.

    Attributes:
        problem: what was asked for.
        backend: name of what runs it.
        layout: what the host must allocate for every block.
        reasons: (backend, why it was passed over) of those tried before.
        kernels: what the backend calls, where it is made of kernels that have names.
    """

    problem: AttentionProblem
    backend: str
    layout: CacheLayout
    reasons: tuple[tuple[str, str], ...]
    create: Callable[[], AttentionBackend] = field(repr=False, compare=False)
    kernels: tuple[str, ...] = ()

    @cached_property
    def runner(self) -> AttentionBackend:
        """What runs it, made when it is first asked for: a plan can be explained where its backend is not installed."""
        return self.create()

    @property
    def capturable(self) -> bool:
        """A step may be captured in a graph, see `AttentionBackend`."""
        return getattr(self.runner, "capturable", False)

    @property
    def captures_prompts(self) -> bool:
        """A captured step may have requests of many tokens, and not take far more memory for it than others do."""
        return getattr(self.runner, "captures_prompts", True)

    def build_metadata(self, geometry: BatchGeometry) -> Any:
        """What `forward` needs to know about one step; every layer of this plan takes the same."""
        return self.runner.build_metadata(geometry)

    def forward(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: Any,
        *,
        prologue: AttentionPrologue | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Norm and rotate the raw queries and keys, write keys and values to their slots, attend through the pages.

        Args:
            q_THD: ``[T, num_heads, head_dim]``; it and the next two may be slices of one qkv projection.
            k_TKD, v_TKD: ``[T, num_kv_heads, head_dim]``.
            kv_cache: this layer's tensors, ``[num_blocks, *shape]`` of each entry of the layout; written in place.
            metadata: of this step, from `build_metadata`.
            prologue: norms and rotation, None for none.
            sinks: ``[num_heads]`` if the problem has sinks.

        Returns:
            ``[T, num_heads, head_dim]``, contiguous; rows of no request are zeros.
        """
        return self.runner.forward(q_THD, k_TKD, v_TKD, kv_cache, metadata, prologue=prologue, sinks=sinks)


def select_attention(
    problem: AttentionProblem,
    platform: Platform | None = None,
    offered: Sequence[CacheLayout] | None = None,
    *,
    only_backend: str | None = None,
) -> AttentionPlan:
    """Choose the backend and the cache layout of a layer, once, when it is built.

    Args:
        problem: the layer.
        platform: where it runs; None probes this machine.
        offered: layouts that the host can give, None for any.
        only_backend: consider no other (``"aiter"``, ``"triton"``, ``"native"``, ``"torch"``, ``"reference"``).

    Raises:
        UnsupportedAttentionError: nothing fits; it lists the reason of each backend.
    """
    usual = agree_on_layout(problem.nhd_layout, offered)
    module, layout, reasons = choose_backend(
        BACKENDS, problem, usual, offered, platform=platform, only_backend=only_backend
    )
    return AttentionPlan(
        problem, module.NAME, layout, reasons, partial(module.create, problem, layout), kernels_of(module, layout)
    )


def agree_on_layout(usual: CacheLayout, offered: Sequence[CacheLayout] | None) -> CacheLayout:
    """Our own layout where the host can give it, else one of the same tensors with other strides.

    Raises:
        UnsupportedAttentionError: the host offers neither.
    """
    if offered is None or usual in offered:
        return usual
    parts = [(tensor.shape, tensor.dtype) for tensor in usual.tensors]
    for layout in offered:
        if [(tensor.shape, tensor.dtype) for tensor in layout.tensors] == parts:
            return layout
    given = ", ".join(f"{other.name} of {other.block_size} tokens" for other in offered) or "none"
    raise UnsupportedAttentionError(
        f"attention needs the cache layout {usual.name} of {usual.block_size} tokens with tensors "
        f"{[(tensor.shape, tensor.dtype) for tensor in usual.tensors]}; the host offers {given}"
    )


def choose_backend(
    backends: Sequence[Any],
    problem: AttentionProblem | MlaProblem,
    usual: CacheLayout,
    offered: Sequence[CacheLayout] | None,
    *,
    platform: Platform | None,
    only_backend: str | None,
) -> tuple[Any, CacheLayout, tuple[tuple[str, str], ...]]:
    """The first of `backends` that can run `problem` here, over which layout, and why those before it cannot.

    A backend is a module with ``NAME``, ``supports(problem, platform) -> None or the reason why not``, and ``create``.
    Of kernels that it might have taken instead it tells with ``passed_over(problem, platform, layout)``, as reasons.
    It reads the `usual` layout, unless ``layouts(problem, platform)`` lists what it reads, best first. Where its blocks
    may lie in any way it has ``READS_STRIDES``, or ``why_not_strided(problem, platform)``.
    """
    platform = platform or detect_platform()
    reasons: list[tuple[str, str]] = []
    for module in backends:
        if only_backend is not None and only_backend != module.NAME:
            continue
        reason, layout = platform.why_not(module.NAME) or module.supports(problem, platform), None
        if reason is None:
            layout, reason = _agree_with(module, problem, platform, usual, offered)
        if layout is not None:
            if hasattr(module, "passed_over"):
                reasons += module.passed_over(problem, platform, layout)
            return module, layout, tuple(reasons)
        reasons.append((module.NAME, reason or "gave no reason"))
    known = ", ".join(module.NAME for module in backends)
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons) or f"{only_backend!r} is not one of {known}"
    raise UnsupportedAttentionError(f"nothing can run {problem} on {platform.name}: {tried}")


def _agree_with(
    module: Any,
    problem: AttentionProblem | MlaProblem,
    platform: Platform,
    usual: CacheLayout,
    offered: Sequence[CacheLayout] | None,
) -> tuple[CacheLayout | None, str | None]:
    """The layout for a backend, or the reason why there is none."""
    if any(tensor.strides is not None for tensor in usual.tensors):
        reason = f"reads contiguous blocks only, not the layout {usual.name}"
        if hasattr(module, "why_not_strided"):
            reason = module.why_not_strided(problem, platform)
        elif getattr(module, "READS_STRIDES", False):
            reason = None
        return (usual, None) if reason is None else (None, reason)
    wanted = module.layouts(problem, platform) if hasattr(module, "layouts") else (usual,)
    for layout in wanted:
        if layout == usual or offered is None or layout in offered:
            return layout, None
    return None, f"reads the layout {' or '.join(layout.name for layout in wanted)}, which the host does not offer"


def kernels_of(module: Any, layout: CacheLayout) -> tuple[str, ...]:
    """The names of the kernels that a backend calls over `layout`, where its module's ``KERNELS`` lists them."""
    return getattr(module, "KERNELS", {}).get(layout.name, ())
