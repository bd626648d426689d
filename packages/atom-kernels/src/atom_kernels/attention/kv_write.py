"""The reference of the cache write. Shapes: T tokens, K key/value heads, D head_dim."""

from __future__ import annotations

import torch

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def write_kv(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    kv_cache: tuple[torch.Tensor, ...],
    slot_mapping_T: torch.Tensor,
) -> None:
    """Store the keys and values of each token at its slot, in place.

    Args:
        k_TKD, v_TKD: new keys (already rotated) and values.
        kv_cache: keys and values ``[num_blocks, block_size, K, D]`` of any float dtype; float8 saturates.
        slot_mapping_T: int64, ``block_id * block_size + offset``; -1 writes nothing.
    """
    k_cache, v_cache = kv_cache
    written_T = slot_mapping_T >= 0
    if not bool(written_T.all()):
        k_TKD, v_TKD, slot_mapping_T = k_TKD[written_T], v_TKD[written_T], slot_mapping_T[written_T]
    block_ids, offsets = slot_mapping_T // k_cache.shape[1], slot_mapping_T % k_cache.shape[1]
    _store(k_cache, block_ids, offsets, k_TKD)
    _store(v_cache, block_ids, offsets, v_TKD)


def _store(cache: torch.Tensor, block_ids: torch.Tensor, offsets: torch.Tensor, x_TKD: torch.Tensor) -> None:
    if cache.dtype in _FLOAT8:
        limit = torch.finfo(cache.dtype).max
        stored = x_TKD.float().clamp(-limit, limit).to(cache.dtype)
        # Indexed writes know no float8; the bytes are what counts.
        cache.view(torch.uint8)[block_ids, offsets] = stored.view(torch.uint8)
    else:
        cache[block_ids, offsets] = x_TKD.to(cache.dtype)
