"""What one layer of sparse latent attention asks for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.attention.mla.problem import MlaProblem

if TYPE_CHECKING:
    from atom_kernels.mixers.backend import MixerBackend


@dataclass(frozen=True)
class SparseMlaProblem(MlaProblem):
    """Latent attention whose queries see chosen positions only; the cache is that of `MlaProblem`.

    DeepSeek-AI 2025, "DeepSeek-V3.2", https://arxiv.org/abs/2512.02556, section 2.1.

    Attributes:
        top_k: positions that a query sees at most.
    """

    top_k: int
    name: ClassVar[str] = "sparse_latent_attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k < 1:
            raise ValueError(f"SparseMlaProblem.top_k is {self.top_k}; it must be at least 1")

    @classmethod
    def of(cls, problem: MlaProblem, top_k: int) -> SparseMlaProblem:
        """The same layer with a choice of positions."""
        return cls(**{field.name: getattr(problem, field.name) for field in fields(MlaProblem)}, top_k=top_k)

    @property
    def dense(self) -> MlaProblem:
        """The same layer without a choice: what it is for requests of up to `top_k` tokens."""
        return MlaProblem(**{field.name: getattr(self, field.name) for field in fields(MlaProblem)})

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.sparse.backends import BACKENDS

        return BACKENDS
