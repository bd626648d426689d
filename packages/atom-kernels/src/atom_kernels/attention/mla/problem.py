"""What one layer of latent attention asks for, and what is done to its raw queries and latents first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.mixers.cache_format import HEAD_SCALES, CacheFormat
from atom_kernels.mixers.requests import Requests, num_keys, num_pairs, num_rows
from atom_kernels.operator import WeightSpec, Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheLayout
from atom_kernels.protocols.pages import Pages

if TYPE_CHECKING:
    import torch

    from atom_kernels.mixers.backend import MixerBackend


@dataclass(frozen=True)
class MlaProblem:
    """Shapes of one layer of multi-head latent attention, as this rank sees it.

    DeepSeek-AI 2024, "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 2.1. Keys and values of all heads come
    from one latent vector a token, which is what the cache holds, together with a rotated key that all heads share.

    Attributes:
        num_heads: query heads.
        kv_lora_rank: elements of a latent.
        qk_nope_head_dim, qk_rope_head_dim: the part of a query that is not rotated, and the rotated part after it.
        v_head_dim: elements of one head's value, and of its output.
        scale: factor on ``q @ k``, usually ``(qk_nope_head_dim + qk_rope_head_dim) ** -0.5``.
        dtype: the dtype of queries, new latents, weights and the output, by torch name.
        cache: how latents are cached.
        block_size: tokens of one cache block.
    """

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    scale: float
    dtype: str
    cache: CacheFormat
    block_size: int
    name: ClassVar[str] = "latent_attention"

    def __post_init__(self) -> None:
        for name in ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"MlaProblem.{name} is {getattr(self, name)}; it must be at least 1")
        if self.qk_rope_head_dim % 2:
            raise ValueError(
                f"MlaProblem.qk_rope_head_dim is {self.qk_rope_head_dim}; pairs are rotated: it must be even"
            )
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"MlaProblem.dtype is {self.dtype!r}; give one of {', '.join(DTYPE_BYTES)}")

    @property
    def query_dim(self) -> int:
        """Elements of one head's query."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Elements that a token has in the cache: its latent, then its rotated key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def keeps(self) -> Pages:
        """Every query sees everything before it."""
        return Pages()

    @property
    def kv_cache_dtype(self) -> str:
        """The dtype of what is cached, by torch name."""
        return self.cache.dtype

    @property
    def out_shape(self) -> tuple[int, int]:
        """The shape of one token's output."""
        return self.num_heads, self.v_head_dim

    @property
    def out_dtype(self) -> str:
        return self.dtype

    @property
    def layout(self) -> CacheLayout:
        """Latents token by token: physically adjacent blocks are one run of tokens."""
        shape = (self.block_size, self.latent_dim)
        return CacheLayout("latent", self.block_size, self.cache.tensors({"latent": shape}))

    @property
    def weights(self) -> dict[str, WeightSpec]:
        """``kv_b [num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]``, and the scale of latents if it has one.

        For each head ``kv_b`` has what makes its keys from a latent, then what makes its values.
        """
        import torch

        rows = self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        weights = {"kv_b": WeightSpec((rows, self.kv_lora_rank), getattr(torch, self.dtype))}
        if self.cache.scales == HEAD_SCALES:
            weights["latent_scale"] = WeightSpec((1,), torch.float32)
        return weights

    def work(self, requests: Requests) -> Work:
        """Each latent and weight read once, queries read and outputs written; the cheaper of both ways to compute."""
        keys, rows, pairs = num_keys(requests), num_rows(requests), num_pairs(requests)
        products = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        absorbed = rows * products + pairs * (self.latent_dim + self.kv_lora_rank)
        expanded = keys * products + pairs * (self.query_dim + self.v_head_dim)
        latents = keys * self.latent_dim * DTYPE_BYTES[self.kv_cache_dtype]
        others = self.num_heads * (products + rows * (self.query_dim + self.v_head_dim))
        return Work(latents + others * DTYPE_BYTES[self.dtype], 2 * self.num_heads * min(absorbed, expanded))

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.mla.backends import BACKENDS

        return BACKENDS


@dataclass(frozen=True)
class MlaPrologue:
    """What happens to raw queries and latents first: RMS norm of the latent, rotation of the rotary parts.

    Attributes:
        positions: int64 ``[num_tokens]``.
        cos_sin_cache: float32 ``[num_positions, qk_rope_head_dim]``, cosines in the first half, sines in the second;
            None rotates nothing.
        interleaved: pairs are neighbors instead of halves.
        norm_weight: ``[kv_lora_rank]``, None for no norm.
        norm_eps: added to the mean square.
    """

    positions: torch.Tensor
    cos_sin_cache: torch.Tensor | None = None
    interleaved: bool = True
    norm_weight: torch.Tensor | None = None
    norm_eps: float = 1e-6
