"""What one layer of sparse latent attention asks for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.mixers.requests import Requests, num_rows
from atom_kernels.operator import Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES

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

    def work(self, requests: Requests) -> Work:
        """Latent attention, each of whose queries reads `top_k` latents of its own and multiplies with these."""
        short = [(queries, length) for queries, length in requests if length <= self.top_k]
        long = [(queries, length) for queries, length in requests if length > self.top_k]
        parts = [self.dense.work(short)] if short else []
        parts += [self._work_of_choices(long)] if long else []
        return Work(sum(part.num_bytes for part in parts), sum(part.flops for part in parts))

    def _work_of_choices(self, requests: Requests) -> Work:
        """What requests that are longer than a choice take."""
        rows = num_rows(requests)
        pairs = rows * self.top_k
        products = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        flops = 2 * self.num_heads * (rows * products + pairs * (self.latent_dim + self.kv_lora_rank))
        latents = sum(min(length, queries * self.top_k) for queries, length in requests) * self.latent_dim
        others = self.num_heads * (products + rows * (self.query_dim + self.v_head_dim))
        num_bytes = latents * DTYPE_BYTES[self.kv_cache_dtype] + others * DTYPE_BYTES[self.dtype]
        return Work(num_bytes + 4 * pairs, flops)

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.sparse.backends import BACKENDS

        return BACKENDS
