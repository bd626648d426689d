"""Inverses of unit triangular matrices of a chunk, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import CHUNK

# Tokens of a block, as many as a matrix instruction takes, and blocks of a chunk.
_BLOCK = tl.constexpr(16)
_BLOCKS = tl.constexpr(CHUNK // 16)


@triton.jit
def between_halves(size: tl.constexpr, log2_half):
    """Where, in squares of twice ``2^log2_half`` on a diagonal, a row is of one half and a column of the other."""
    rows, columns = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    is_square = rows >> log2_half + 1 == columns >> log2_half + 1
    return is_square & (rows >> log2_half != columns >> log2_half)


@triton.jit
def _join_halves(met, inverse, is_between, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """Inverses of squares from those of their halves: with C between halves, ``-inverse C inverse`` lies there."""
    met, halves = tl.where(is_between, met, 0.0).to(DTYPE), inverse.to(DTYPE)
    between = tl.dot(met, halves, input_precision=PRECISION).to(DTYPE)
    return inverse - tl.dot(halves, between, input_precision=PRECISION)


@triton.jit
def on_diagonal():
    """Where, in ``[4, 16, 4, 16]`` of a chunk's pairs of tokens, both are of one block."""
    blocks = tl.arange(0, _BLOCKS)
    return blocks[:, None, None, None] == blocks[None, None, :, None]


@triton.jit
def diagonal_of(met):
    """The blocks ``[4, 16, 16]`` on the diagonal of ``[64, 64]``."""
    squares = tl.reshape(met, [_BLOCKS, _BLOCK, _BLOCKS, _BLOCK])
    return tl.sum(tl.where(on_diagonal(), squares, 0.0), axis=2)


@triton.jit
def along_diagonal(small):
    """``[64, 64]`` with the blocks ``[4, 16, 16]`` on its diagonal, and zeros elsewhere."""
    whole = tl.where(on_diagonal(), tl.expand_dims(small, 2), 0.0)
    return tl.reshape(whole, [_BLOCKS * _BLOCK, _BLOCKS * _BLOCK])


@triton.jit
def invert(met, beta, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """``(diag(1 / beta) + A)^-1``, with A the strictly lower triangular `met` ``[64, 64]``.

    The inverse grows from the diagonal: to pairs of rows, to blocks of 16, all of them side by side, and to the chunk.
    None of its elements is larger than 1, nor are those of A: so DTYPE may be float16.
    """
    rows, columns = tl.arange(0, _BLOCK)[:, None], tl.arange(0, _BLOCK)[None, :]
    small, beta = diagonal_of(met), tl.reshape(beta, [_BLOCKS, _BLOCK])
    pairs = tl.where(between_halves(_BLOCK, 0)[None], -small * beta[:, None, :], 0.0)
    inverse = (tl.where((rows == columns)[None], 1.0, pairs)) * beta[:, :, None]
    for log2_half in tl.static_range(1, 4):
        is_between = between_halves(_BLOCK, log2_half)[None]
        inverse = _join_halves(small, inverse, is_between, DTYPE, PRECISION)
    whole = along_diagonal(inverse)
    for log2_half in tl.static_range(4, 6):
        is_between = between_halves(_BLOCKS * _BLOCK, log2_half)
        whole = _join_halves(met, whole, is_between, DTYPE, PRECISION)
    return whole
