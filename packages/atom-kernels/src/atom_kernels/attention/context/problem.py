"""What one layer of latent attention asks of a rank that keeps the latents of some positions only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.mixers.requests import Requests, num_keys, num_pairs, num_rows
from atom_kernels.operator import Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheLayout

if TYPE_CHECKING:
    from atom_kernels.mixers.backend import MixerBackend


@dataclass(frozen=True)
class PartialMlaProblem(MlaProblem):
    """Latent attention over the positions of one of several ranks, by the queries of all of them.

    Position p of a request belongs to rank ``p % num_ranks``. Its latent lies where it would lie in a whole cache,
    but for the other ranks' positions, which are left out: in block ``p // block_size`` at ``p % block_size //
    num_ranks``. So all ranks have one block table, which is that of a whole cache.

    Fields of `MlaProblem` are those of the rank's own heads, and of whole blocks. Queries are absorbed before the ranks
    exchange them: multiplied by what makes keys of latents, so that they meet the latents themselves.

    Attributes:
        num_ranks: the ranks that keep a part each; all have as many heads.
        rank: this one's number among them.
    """

    num_ranks: int
    rank: int
    name: ClassVar[str] = "partial_latent_attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size % self.num_ranks:
            raise ValueError(
                f"a block of {self.block_size} tokens cannot be shared evenly by {self.num_ranks} ranks: give a "
                f"block_size that {self.num_ranks} divides"
            )

    @classmethod
    def of(cls, problem: MlaProblem, num_ranks: int, rank: int) -> PartialMlaProblem:
        """The same layer, of which the rank keeps a part."""
        given = {field.name: getattr(problem, field.name) for field in fields(MlaProblem)}
        return cls(**given, num_ranks=num_ranks, rank=rank)

    @property
    def absorbed(self) -> MlaProblem:
        """The queries of all ranks over the latents of this one, in its own blocks.

        What makes keys and values of latents is behind them: keys and values are the latents themselves.
        """
        return MlaProblem(
            num_heads=self.num_heads * self.num_ranks,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.kv_lora_rank,
            scale=self.scale,
            dtype=self.dtype,
            cache=self.cache,
            block_size=self.block_size // self.num_ranks,
        )

    @property
    def out_shape(self) -> tuple[int, int]:
        """A latent for each head of all ranks, and behind it the log-sum-exp of its scores."""
        return self.num_heads * self.num_ranks, self.kv_lora_rank + 1

    @property
    def out_dtype(self) -> str:
        return "float32"

    @property
    def layout(self) -> CacheLayout:
        """Blocks that stand for `block_size` tokens and hold those of this rank."""
        return CacheLayout("latent of a part", self.block_size, self.absorbed.layout.tensors)

    def work(self, requests: Requests) -> Work:
        """Own latents and weights read once, queries of all ranks read, their outputs written."""
        keys, rows, pairs = num_keys(requests), num_rows(requests), num_pairs(requests)
        products = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        operations = 2 * self.num_heads * (rows * products + pairs * (self.latent_dim + self.kv_lora_rank))
        latents = -(-keys // self.num_ranks) * self.latent_dim * DTYPE_BYTES[self.kv_cache_dtype]
        exchanged = self.latent_dim * DTYPE_BYTES[self.dtype] + (self.kv_lora_rank + 1) * DTYPE_BYTES["float32"]
        weights = self.num_heads * products * DTYPE_BYTES[self.dtype]
        return Work(latents + weights + self.num_heads * self.num_ranks * rows * exchanged, operations)

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.context.backends import BACKENDS

        return BACKENDS
