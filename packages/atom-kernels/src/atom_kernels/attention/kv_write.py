"""The reference of the cache write. Shapes: T tokens, K key/value heads, D head_dim."""

from __future__ import annotations

import torch

from atom_kernels.protocols import Caches

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def write_kv(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    caches: Caches,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Store the keys and values of each token at its slot, in place.

    Args:
        k_TKD, v_TKD: new keys (already rotated) and values.
        caches: keys and values ``[num_blocks, block_size, K, D]`` of any float dtype; float8 saturates.
        slot_mapping_T: int64, ``block_id * block_size + offset``; -1 writes nothing.
    """
    k_cache, v_cache = caches
    _write((k_cache, v_cache), (k_TKD, v_TKD), slot_mapping_T)


def write_latents(latent_TC: torch.Tensor, cache: torch.Tensor, slot_mapping_T: torch.Tensor) -> None:
    """Store the latent vector of each token at its slot, in place.

    Args:
        latent_TC: new latents, with their rotated keys behind them.
        cache: ``[num_blocks, block_size, C]`` of any float dtype; float8 saturates.
        slot_mapping_T: int64, ``block_id * block_size + offset``; -1 writes nothing.
    """
    _write((cache,), (latent_TC,), slot_mapping_T)


def _write(caches: Caches, values: tuple[torch.Tensor, ...], slot_mapping_T: torch.Tensor) -> None:
    written_T = slot_mapping_T >= 0
    if not bool(written_T.all()):
        values, slot_mapping_T = tuple(value[written_T] for value in values), slot_mapping_T[written_T]
    block_size = caches[0].shape[1]
    for cache, value in zip(caches, values, strict=True):
        _store(cache, slot_mapping_T // block_size, slot_mapping_T % block_size, value)


def _store(cache: torch.Tensor, block_ids: torch.Tensor, offsets: torch.Tensor, x_T: torch.Tensor) -> None:
    if cache.dtype in _FLOAT8:
        limit = torch.finfo(cache.dtype).max
        stored = x_T.float().clamp(-limit, limit).to(cache.dtype)
        # Indexed writes know no float8; the bytes are what counts.
        cache.view(torch.uint8)[block_ids, offsets] = stored.view(torch.uint8)
    else:
        cache[block_ids, offsets] = x_T.to(cache.dtype)
