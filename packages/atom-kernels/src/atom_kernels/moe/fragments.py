"""Experts' matrices as our Triton kernels read them: mxfp4 as a tensor core's operand has it, all else as linears."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import pad

from atom_kernels.formats import Codes
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_weights import PACKED_LAYOUT, TILE, words_of_powers
from atom_kernels.operator import WeightLayout

# Words of 32 bits that hold a row of a tile.
WORDS = TILE // 8
# So many rows of a tile lie together, since memory is read best in long runs.
ROWS = 32


def fragments(packed: torch.Tensor) -> torch.Tensor:
    """``uint8 [N, K / 2]`` of two e2m1 -> ``int32 [blocks, tiles, ROWS, WORDS]``, as a tensor core's operand has them.

    Four threads share 16 inputs of a row: thread i has inputs 2i and 2i + 1, and those 8 after them. A word holds what
    one thread has of a block of 32 inputs, which share a scale: input ``32 j + 16 b + 8 h + 2 i + p`` of a tile lies in
    word ``4 i + j`` as the p-th of code ``2 b + h`` (`pair_in_word`). Inputs and rows past the last are zeros.
    """
    filled = pad(packed, (0, -packed.shape[1] % (TILE // 2), 0, -packed.shape[0] % ROWS))
    # Each byte has the codes of both halves; [blocks, ROWS, tiles, j, 2 b + h, i].
    places = filled.unflatten(0, (-1, ROWS)).unflatten(2, (-1, 4, 4, 4)).int()
    tables = _IN_WORDS.to(packed.device)
    words = tables[0][places[..., 0, :]]
    for code in range(1, 4):
        words |= tables[code][places[..., code, :]]
    return words.permute(0, 2, 1, 4, 3).flatten(3).contiguous()


def powers(scale: torch.Tensor) -> torch.Tensor:
    """e8m0 bytes ``uint8 [N, K / 32] -> int32 [blocks, tiles, ROWS]``: the four of a row of a tile in a word.

    Raises:
        ValueError: one is beyond what the kernels can scale with.
    """
    words = words_of_powers(scale)
    return pad(words, (0, 0, 0, -words.shape[0] % ROWS)).unflatten(0, (-1, ROWS)).transpose(1, 2).contiguous()


# Where a word of 32 bits has the four bits of the first of each pair, the sign first; those of the second are 16 away.
PLACES = ((15, 8, 7, 6), (11, 4, 3, 2), (5, 30, 29, 28), (1, 26, 25, 0))


def pair_in_word(code: int, first: int, second: int) -> int:
    """The bits of a word of 32 that hold two e2m1 as its first to fourth pair.

    Each half of a pair goes where a bfloat16 has its sign and the last bits of its exponent and first of its mantissa:
    bits 15 and 8 to 6. No rotation is needed for that, one by 4 or 10 to the left, and two for the last pair.
    """
    bits = [(place + 16 * half) % 32 for half in (0, 1) for place in PLACES[code]]
    codes = [one >> 3 - bit & 1 for one in (first, second) for bit in range(4)]
    return sum(code << bit for code, bit in zip(codes, bits, strict=True))


# A byte of two e2m1 as each of the four codes: int32 [4, 256].
_IN_WORDS = torch.tensor([[pair_in_word(code, byte & 15, byte >> 4) for byte in range(256)] for code in range(4)]).to(
    torch.int32
)


def _pack(problem: LinearProblem, weights: Mapping[str, torch.Tensor | None]) -> Mapping[str, torch.Tensor | None]:
    codes, scale = weights["weight"], weights["scale"]
    if problem.weight_format.codes is Codes.E2M1 and codes is not None and scale is not None:
        return {"codes": fragments(codes), "scale": powers(scale), "minimum": None}
    return PACKED_LAYOUT.pack(problem, weights)


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    if problem.weight_format.codes is Codes.E2M1:
        rows, tiles = -(-problem.weight_rows // ROWS) * ROWS, -(-problem.in_features // TILE)
        return rows * tiles * 4 * (WORDS + 1)
    return PACKED_LAYOUT.num_bytes(problem, source_bytes)


# It is that of one expert's matrix.
MATRIX_LAYOUT = WeightLayout("codes as Triton reads them", _pack, _num_bytes)
