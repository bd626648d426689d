"""The reference of the cache write, and what is read back. Shape: T tokens, L tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_kernels.mixers.cache_format import token_scales
from atom_kernels.protocols import Caches

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def write_cache(
    caches: Caches,
    values: Sequence[torch.Tensor],
    slot_mapping_T: torch.Tensor,
    head_scales: Sequence[torch.Tensor] | None = None,
) -> None:
    """Store what each token brings at its slot, in place.

    Args:
        caches: ``[num_blocks, block_size, ..., elements]`` of any float dtype for each of `values`; float8 saturates.
            Where tokens have scales, these follow, ``[num_blocks, block_size, ...]`` for each of `values`.
        values: ``[T, ..., elements]``: new keys (already rotated) and values, or latents with their rotated keys
            behind them.
        slot_mapping_T: int64, ``block_id * block_size + offset``; -1 writes nothing.
        head_scales: ``[heads]`` for each of `values`, which are divided by them.
    """
    written_T = slot_mapping_T >= 0
    if not bool(written_T.all()):
        values, slot_mapping_T = [value[written_T] for value in values], slot_mapping_T[written_T]
    block_size, count = caches[0].shape[1], len(values)
    places = (slot_mapping_T // block_size, slot_mapping_T % block_size)
    for index, value in enumerate(values):
        if head_scales is not None:
            value = value.float() / head_scales[index].unsqueeze(-1)
        if len(caches) > count:
            scale = token_scales(value, caches[index].dtype)
            caches[count + index][places] = scale.squeeze(-1)
            value = value.float() / scale
        _store(caches[index], places, value)


def read_tokens(
    caches: Caches, block_ids: torch.Tensor, length: int, head_scales: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """What is cached of a request, token by token, in float32: ``[L, ..., elements]`` of each cache, times its scales.

    Args:
        caches, head_scales: as in `write_cache`.
        block_ids: the request's blocks in order, and anything behind them.
    """
    blocks = block_ids[: -(-length // caches[0].shape[1])].tolist()
    tensors = [torch.cat([cache[block].float() for block in blocks])[:length] for cache in caches]
    scaled = [tensor for tensor, cache in zip(tensors, caches, strict=True) if cache.dim() == caches[0].dim()]
    scales = list(head_scales) if head_scales is not None else tensors[len(scaled) :]
    return [tensor * scale.unsqueeze(-1) for tensor, scale in zip(scaled, scales, strict=True)] if scales else scaled


def _store(cache: torch.Tensor, places: tuple[torch.Tensor, torch.Tensor], x_T: torch.Tensor) -> None:
    if cache.dtype in _FLOAT8:
        limit = torch.finfo(cache.dtype).max
        stored = x_T.float().clamp(-limit, limit).to(cache.dtype)
        # Indexed writes know no float8; the bytes are what counts.
        cache.view(torch.uint8)[places] = stored.view(torch.uint8)
    else:
        cache[places] = x_T.to(cache.dtype)
