"""How AITER's kernels want cached keys and values to lie in a block, and the way there from rows of tokens and back.

An element takes ``16 / itemsize`` of its kind to fill 16 bytes, which is called X: one load of a thread.

- keys, packed: ``[B, K, D/X, S, X]``: pieces of X elements of a head, token by token;
- values, shuffled: ``[B, K, S/X, D, X]``: for each element of a head, X tokens side by side;
- NHD, ours: ``[B, S, K, D]``.

Shapes: B blocks, S tokens of a block, K key/value heads, D head_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheLayout, Caches, CacheTensor

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem

VECTOR_BYTES = 16


def vector_width(dtype: str | torch.dtype) -> int:
    """X: elements of `dtype` in 16 bytes."""
    return VECTOR_BYTES // (DTYPE_BYTES[dtype] if isinstance(dtype, str) else dtype.itemsize)


def why_not_shuffled(problem: AttentionProblem) -> str | None:
    """Why blocks of this problem cannot be cut into vectors, None if they can."""
    width = vector_width(problem.kv_cache_dtype)
    if problem.head_dim % width or problem.block_size % width:
        return (
            f"packs {width} elements of {problem.kv_cache_dtype}: head_dim {problem.head_dim} and blocks of "
            f"{problem.block_size} are not both multiples of that"
        )
    return None


def shuffled_layout(problem: AttentionProblem) -> CacheLayout:
    """Packed keys and shuffled values, as AITER's assembly kernels read them ("ASM layout")."""
    width, heads = vector_width(problem.kv_cache_dtype), problem.num_kv_heads
    keys = (heads, problem.head_dim // width, problem.block_size, width)
    values = (heads, problem.block_size // width, problem.head_dim, width)
    tensors = (CacheTensor("key", keys, problem.kv_cache_dtype), CacheTensor("value", values, problem.kv_cache_dtype))
    return CacheLayout("shuffled", problem.block_size, tensors)


def scaled_layout(problem: AttentionProblem) -> CacheLayout:
    """The shuffled layout and a float32 scale ``[K, S]`` for each token and head of keys, and one of values."""
    plain = shuffled_layout(problem)
    shape = (problem.num_kv_heads, problem.block_size)
    scales = tuple(CacheTensor(name, shape, "float32") for name in ("key_scale", "value_scale"))
    return CacheLayout("shuffled_scaled", problem.block_size, (*plain.tensors, *scales))


def pack_keys(keys_BSKD: torch.Tensor) -> torch.Tensor:
    """NHD to packed keys."""
    width = vector_width(keys_BSKD.dtype)
    return keys_BSKD.unflatten(3, (-1, width)).permute(0, 2, 3, 1, 4).contiguous()


def unpack_keys(packed: torch.Tensor) -> torch.Tensor:
    """Packed keys to NHD."""
    return packed.permute(0, 3, 1, 2, 4).flatten(3).contiguous()


def shuffle_values(values_BSKD: torch.Tensor) -> torch.Tensor:
    """NHD to shuffled values."""
    width = vector_width(values_BSKD.dtype)
    return values_BSKD.unflatten(1, (-1, width)).permute(0, 3, 1, 4, 2).contiguous()


def unshuffle_values(shuffled: torch.Tensor) -> torch.Tensor:
    """Shuffled values to NHD."""
    return shuffled.permute(0, 2, 4, 1, 3).flatten(1, 2).contiguous()


def quantize_rows(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of the last dimension over its largest magnitude: float8 values, and float32 scales without it.

    ``values * scales`` gives the rows back. A row of zeros has scale 0 and stays zeros.
    """
    scales = rows.float().abs().amax(-1) / torch.finfo(dtype).max
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales)).unsqueeze(-1)
    return (rows.float() / divisors).to(dtype), scales


def restore_nhd(layout: CacheLayout, caches: Caches) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a cache in NHD, in float32 where scales were taken off.

    Raises:
        ValueError: a layout that is not one of this module's, nor NHD.
    """
    _check_known(layout)
    if layout.name == "nhd":
        return caches[0], caches[1]
    keys, values = unpack_keys(caches[0]), unshuffle_values(caches[1])
    if layout.name == "shuffled":
        return keys, values
    key_scale, value_scale = (scale_BKS.transpose(1, 2).unsqueeze(-1) for scale_BKS in caches[2:])
    return keys.float() * key_scale, values.float() * value_scale


def from_nhd(
    layout: CacheLayout, keys_BSKD: torch.Tensor, values_BSKD: torch.Tensor, *scales_BSK: torch.Tensor
) -> Caches:
    """A cache of `layout` that holds what NHD keys and values hold; rounded where it has scales and they have none.

    Raises:
        ValueError: as `restore_nhd`.
    """
    _check_known(layout)
    if layout.name == "nhd":
        return keys_BSKD, values_BSKD
    if layout.name == "shuffled":
        return pack_keys(keys_BSKD), shuffle_values(values_BSKD)
    dtype = getattr(torch, layout.tensors[0].dtype)
    keys, values = keys_BSKD, values_BSKD
    if not scales_BSK:
        (keys, key_scale), (values, value_scale) = (quantize_rows(rows, dtype) for rows in (keys, values))
        scales_BSK = (key_scale, value_scale)
    scales = (scale_BSK.transpose(1, 2).contiguous() for scale_BSK in scales_BSK)
    return (pack_keys(keys), shuffle_values(values), *scales)


def _check_known(layout: CacheLayout) -> None:
    if layout.name not in ("nhd", "shuffled", "shuffled_scaled"):
        raise ValueError(f"the cache layout {layout.name} is neither NHD nor one of AITER's")
