"""`select_mla`: which backend runs a layer of latent attention here, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from atom_kernels.aiter.attention import latent_backend
from atom_kernels.attention.mla import native_backend, reference, torch_backend, triton_backend
from atom_kernels.attention.plan import agree_on_layout, choose_backend, kernels_of

if TYPE_CHECKING:
    import torch

    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout

# In the order in which they are tried.
BACKENDS = (latent_backend, triton_backend, native_backend, torch_backend, reference)


class MlaBackend(Protocol):
    """What runs one layer: weights once, metadata once a step, `forward` once a layer and step."""

    def prepare(self, kv_b_weight: torch.Tensor) -> Any: ...
    def build_metadata(self, geometry: BatchGeometry) -> Any: ...
    def forward(
        self,
        q_THD: torch.Tensor,
        kv_TL: torch.Tensor,
        weights: Any,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: Any,
        *,
        prologue: MlaPrologue | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class MlaPlan:
    """The choice made for one problem. Layers of equal problems may share a plan and its metadata.

    Attributes:
        problem: what was asked for.
        backend: name of what runs it.
        layout: what the host must allocate for every block.
        reasons: (backend, why it was passed over) of those tried before.
        kernels: what the backend calls, where it is made of kernels that have names.
    """

    problem: MlaProblem
    backend: str
    layout: CacheLayout
    reasons: tuple[tuple[str, str], ...]
    create: Callable[[], MlaBackend] = field(repr=False, compare=False)
    kernels: tuple[str, ...] = ()

    @cached_property
    def runner(self) -> MlaBackend:
        """What runs it, made when it is first asked for; see `AttentionPlan`."""
        return self.create()

    @property
    def capturable(self) -> bool:
        """A step may be captured in a graph, see `AttentionBackend`."""
        return getattr(self.runner, "capturable", False)

    @property
    def captures_prompts(self) -> bool:
        """A captured step may have requests of many tokens, and not take far more memory for it than others do."""
        return getattr(self.runner, "captures_prompts", True)

    def prepare(self, kv_b_weight: torch.Tensor) -> Any:
        """The weights as `forward` wants them.

        Args:
            kv_b_weight: ``[num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]``: for each head what makes its
                keys from a latent, then what makes its values. It may be kept.
        """
        problem = self.problem
        shape = (problem.num_heads * (problem.qk_nope_head_dim + problem.v_head_dim), problem.kv_lora_rank)
        if tuple(kv_b_weight.shape) != shape or str(kv_b_weight.dtype) != f"torch.{problem.dtype}":
            given = f"{list(kv_b_weight.shape)} {kv_b_weight.dtype}"
            raise ValueError(f"kv_b_weight is {given}; the problem calls for {list(shape)} {problem.dtype}")
        return self.runner.prepare(kv_b_weight)

    def build_metadata(self, geometry: BatchGeometry) -> Any:
        """What `forward` needs to know about one step; every layer of this plan takes the same, one after the other."""
        return self.runner.build_metadata(geometry)

    def forward(
        self,
        q_THD: torch.Tensor,
        kv_TL: torch.Tensor,
        weights: Any,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: Any,
        *,
        prologue: MlaPrologue | None = None,
    ) -> torch.Tensor:
        """Norm and rotate raw latents and queries, write the latents to their slots, attend through the pages.

        Args:
            q_THD: ``[T, num_heads, query_dim]``, the part to rotate last.
            kv_TL: ``[T, latent_dim]``, latent and then the key to rotate; it may be a slice of a wider projection.
            weights: of this layer, from `prepare`.
            kv_cache: this layer's tensor, ``[num_blocks, block_size, latent_dim]``; written in place.
            metadata: of this step, from `build_metadata`.
            prologue: norm and rotation, None for none.

        Returns:
            ``[T, num_heads, v_head_dim]``, contiguous; rows of no request are zeros.
        """
        return self.runner.forward(q_THD, kv_TL, weights, kv_cache, metadata, prologue=prologue)


def select_mla(
    problem: MlaProblem,
    platform: Platform | None = None,
    offered: Sequence[CacheLayout] | None = None,
    *,
    only_backend: str | None = None,
) -> MlaPlan:
    """Choose the backend and the cache layout of a layer, once, when it is built; see `select_attention`.

    Raises:
        UnsupportedAttentionError: nothing fits; it lists the reason of each backend.
    """
    usual = agree_on_layout(problem.layout, offered)
    module, layout, reasons = choose_backend(
        BACKENDS, problem, usual, offered, platform=platform, only_backend=only_backend
    )
    return MlaPlan(problem, module.NAME, layout, reasons, partial(module.create, problem), kernels_of(module, layout))
