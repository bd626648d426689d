"""Experts' matrices as our Triton kernels read them: mxfp4 as a tensor core's operand has it, all else as linears."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import pad

from atom_kernels.formats import Mxfp4, unpack_nibbles
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_weights import PACKED_LAYOUT, TILE, words_of_powers
from atom_kernels.operator import Layout

# Words of 32 bits that hold a row of a tile.
WORDS = TILE // 8


def fragments(packed: torch.Tensor) -> torch.Tensor:
    """``uint8 [N, K / 2]`` of two e2m1 -> ``int32 [N, tiles * WORDS]``, in the order of a tensor core's operand.

    Four threads share 16 inputs of a row: thread i has inputs 2i and 2i + 1, and those 8 after them. A word holds what
    one thread has of a block of 32 inputs, which share a scale: input ``32 j + 16 b + 8 h + 2 i + p`` of a tile lies in
    word ``4 i + j``, in half p, as code ``2 b + h``. Inputs past the last are zeros.

    A code's sign and its other bits lie as far from each other as in a bfloat16, so that one shift takes both to their
    places: sign and rest of the first are bits 15 and 8 to 6, of the next two those three and six lower. The last takes
    the bits that are left: 14, 13, and 11 to 10.
    """
    codes = unpack_nibbles(packed)
    codes = pad(codes, (0, -codes.shape[1] % TILE)).to(torch.int32)
    sign, rest = codes >> 3, codes & 7
    # Each [N, tiles, j, b, h, i, p].
    sign, rest = (bits.unflatten(1, (-1, 4, 2, 2, 4, 2)) for bits in (sign, rest))
    halves = torch.zeros_like(sign[:, :, :, 0, 0])
    for code, shift in enumerate((0, 3, 6)):
        halves |= sign[:, :, :, code // 2, code % 2] << 15 - shift
        halves |= rest[:, :, :, code // 2, code % 2] << 6 - shift
    last = rest[:, :, :, 1, 1]
    halves |= sign[:, :, :, 1, 1] << 14 | (last >> 2) << 13 | (last & 3) << 10
    words = halves[..., 0] | halves[..., 1] << 16
    return words.transpose(2, 3).flatten(1).contiguous()


def _pack(problem: LinearProblem, weights: Mapping[str, torch.Tensor | None]) -> Mapping[str, torch.Tensor | None]:
    codes, scale = weights["weight"], weights["scale"]
    if isinstance(problem.weight_format, Mxfp4) and codes is not None and scale is not None:
        return {"codes": fragments(codes), "scale": words_of_powers(scale), "minimum": None}
    return PACKED_LAYOUT.pack(problem, weights)


# Of one expert's matrix.
MATRIX_LAYOUT = Layout("codes as Triton reads them", _pack, PACKED_LAYOUT.num_bytes)
