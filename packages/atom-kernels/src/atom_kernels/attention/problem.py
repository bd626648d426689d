"""What one attention layer asks for, and what is done to its raw queries and keys first."""

from __future__ import annotations

from dataclasses import dataclass, field
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
class AttentionProblem:
    """Shapes and rules of one attention layer, as this rank sees it.

    Attributes:
        num_heads, num_kv_heads: query and key/value heads; the first is a multiple of the second, and query head ``h``
            reads key/value head ``h // (num_heads // num_kv_heads)``.
        head_dim: elements of one head.
        scale: factor on ``q @ k``, usually ``head_dim ** -0.5``.
        dtype: the dtype of queries, new keys and values, and the output, by torch name.
        cache: how keys and values are cached.
        block_size: tokens of one cache block.
        sliding_window: tokens visible to a query including itself; None sees everything.
        has_sinks: a learned logit per query head joins the softmax denominator and takes no value.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)`` before masking.
        batch_invariant: a row's bits depend on nothing but its own request; where work is else shared out over a step,
            this costs time.
        sees_ahead: tokens of a step may see later ones of it, see `BatchGeometry.sees_until`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: str
    cache: CacheFormat
    block_size: int
    sliding_window: int | None = None
    has_sinks: bool = False
    soft_cap: float | None = None
    batch_invariant: bool = False
    sees_ahead: bool = False
    name: ClassVar[str] = "paged_attention"

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"AttentionProblem.{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"AttentionProblem.num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"AttentionProblem.dtype is {self.dtype!r}; give one of {', '.join(DTYPE_BYTES)}")
        if not self.scale > 0:
            raise ValueError(f"AttentionProblem.scale is {self.scale}; it must be positive")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"AttentionProblem.sliding_window is {self.sliding_window}; it must be at least 1 or None")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"AttentionProblem.soft_cap is {self.soft_cap}; it must be positive or None")

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_cache_dtype(self) -> str:
        """The dtype of what is cached, by torch name."""
        return self.cache.dtype

    @property
    def out_shape(self) -> tuple[int, int]:
        """The shape of one token's output."""
        return self.num_heads, self.head_dim

    @property
    def out_dtype(self) -> str:
        return self.dtype

    @property
    def keeps(self) -> Pages:
        """Keys and values of the tokens that a query sees."""
        return Pages(self.sliding_window)

    @property
    def layout(self) -> CacheLayout:
        """Keys and values apart, token by token: physically adjacent blocks are one run of tokens."""
        shape = (self.block_size, self.num_kv_heads, self.head_dim)
        return CacheLayout("nhd", self.block_size, self.cache.tensors({"key": shape, "value": shape}))

    @property
    def weights(self) -> dict[str, WeightSpec]:
        """``sinks [num_heads]`` if it has sinks; of a cache with scales of heads, those of keys and of values."""
        import torch

        weights = {}
        if self.has_sinks:
            weights["sinks"] = WeightSpec((self.num_heads,), getattr(torch, self.dtype))
        if self.cache.scales == HEAD_SCALES:
            weights |= {name: WeightSpec((self.num_kv_heads,), torch.float32) for name in ("key_scale", "value_scale")}
        return weights

    def work(self, requests: Requests) -> Work:
        """Each visible key and value read once, queries read and outputs written; two products for every pair."""
        keys, pairs = num_keys(requests, self.sliding_window), num_pairs(requests, self.sliding_window)
        per_token = self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.kv_cache_dtype]
        per_row = self.num_heads * self.head_dim
        num_bytes = 2 * keys * per_token + 2 * num_rows(requests) * per_row * DTYPE_BYTES[self.dtype]
        return Work(num_bytes, 4 * pairs * per_row)

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.backends import BACKENDS

        return BACKENDS


@dataclass(frozen=True)
class AttentionPrologue:
    """What happens to raw queries and keys before they are used: RMS norm of each head, then rotation.

    Attributes:
        positions: int64 ``[num_tokens]``.
        cos_sin_cache: float32 ``[num_positions, rotary_dim]``, cosines in the first half, sines in the second; None
            rotates nothing. Elements of a head past rotary_dim are left as they are.
        interleaved: pairs are neighbors (GPT-J) instead of halves (NeoX).
        q_norm_weight, k_norm_weight: ``[head_dim]``, None for no norm.
        norm_eps: added to the mean square in both norms.
    """

    positions: torch.Tensor
    cos_sin_cache: torch.Tensor | None = None
    interleaved: bool = False
    q_norm_weight: torch.Tensor | None = None
    k_norm_weight: torch.Tensor | None = None
    norm_eps: float = field(kw_only=True)
