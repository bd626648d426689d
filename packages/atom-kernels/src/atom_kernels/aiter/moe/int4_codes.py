"""int4 weights of experts in the words that AITER's kernels read: eight numbers in 32 bits, even columns first.

AITER's own tests pack them so, after shuffling them as numbers of eight bits.
"""

from __future__ import annotations

import torch

from atom_kernels.aiter.library import library
from atom_kernels.formats import unpack_nibbles

_SHUFFLE = (16, 16)
# Which of eight neighboring columns lies in each four bits of a word, from the lowest on.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The code that stands for zero.
_ZERO = 8


def numbers_of(codes: torch.Tensor) -> torch.Tensor:
    """Packed codes ``uint8 [..., K / 2]`` -> their numbers, int8 ``[..., K]``."""
    return unpack_nibbles(codes).to(torch.int8) - _ZERO


def to_machine_int4(numbers: torch.Tensor) -> torch.Tensor:
    """int8 ``[E, N, K]`` of -8 to 7 -> uint32 ``[E, N, K / 8]`` in the order of the kernels' tiles."""
    shuffled = library().bind("shuffle_weight", "x", layout=_SHUFFLE, use_int4=True)(numbers)
    eights = (shuffled.to(torch.int32) & 15).unflatten(-1, (-1, 8))
    words = torch.zeros_like(eights[..., 0])
    for place, column in enumerate(_ORDER):
        words |= eights[..., column] << 4 * place
    return words.view(torch.uint32)
