"""Philox4x32-10: one uniform number for each (seed, sample index, position), the same on every backend.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox_uniform(seed_B: torch.Tensor, sample_index_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1), each a function of its own row only.

    Args:
        seed_B: int64, the key (negative seeds count as their two's complement).
        sample_index_B: int64, which of a request's ``n`` samples.
        position_B: int64, the position of the token to draw.

    Returns:
        float64 ``[B]`` with 53 random bits.
    """
    seed, sample, position = (x.to(torch.int64) for x in (seed_B, sample_index_B, position_B))
    counter = [position & _MASK, _high(position), sample & _MASK, _high(sample)]
    key = [seed & _MASK, _high(seed)]
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(counter[0], _MULTIPLIERS[0])
        high1, low1 = _multiply(counter[2], _MULTIPLIERS[1])
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + _WEYL[0]) & _MASK, (key[1] + _WEYL[1]) & _MASK]
    bits = ((counter[0] >> 5) << 26) | (counter[1] >> 6)
    return bits.to(torch.float64) * 2.0**-53


def _high(x: torch.Tensor) -> torch.Tensor:
    # The shift of a signed integer copies its sign, hence the mask.
    return (x >> 32) & _MASK


def _multiply(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of a 32 x 32 bit product, by halves, since torch has no unsigned 64 bit integers."""
    low_product = (x & 0xFFFF) * factor
    high_product = (x >> 16) * factor + (low_product >> 16)
    return high_product >> 16, ((high_product & 0xFFFF) << 16) | (low_product & 0xFFFF)
