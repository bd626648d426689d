"""The reference of the cache write. Shape: T tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_kernels.protocols import Caches

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def write_cache(caches: Caches, values: Sequence[torch.Tensor], slot_mapping_T: torch.Tensor) -> None:
    """Store what each token brings at its slot, in place.

    Args:
        caches: ``[num_blocks, block_size, ...]`` of any float dtype; float8 saturates.
        values: ``[T, ...]`` for each cache: new keys (already rotated) and values, or latents with their rotated keys
            behind them.
        slot_mapping_T: int64, ``block_id * block_size + offset``; -1 writes nothing.
    """
    written_T = slot_mapping_T >= 0
    if not bool(written_T.all()):
        values, slot_mapping_T = [value[written_T] for value in values], slot_mapping_T[written_T]
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
