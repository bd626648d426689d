"""Products of one row with words of int4, in Triton, where tiles share a scale: two words are decoded at a time.

A code lies in a float32 of 128 or 2048 and more, where the last bit of the code is worth one: nothing is subtracted
from each, since what is added to all codes is the same for all rows of the weight and taken off the sums at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import PLANE, TILE, has_offset, scaled_sums

# For each plane of the first and of the second word in 32 bits: the instruction that brings codes to the bit behind it.
_HERE, _UP, _DOWN, _AROUND = "mov.b32 t, $1", "shl.b32 t, $1, 8", "shr.b32 t, $1, 8", "shf.l.wrap.b32 t, $1, $1, 16"
_PLACES = ((_AROUND, 16), (_UP, 12), (_UP, 16), (_HERE, 12), (_HERE, 16), (_DOWN, 12), (_DOWN, 16), (_AROUND, 12))
# What is added to codes that begin at a bit, as float32.
_ADDED = {12: (2048.0, 0x45000000), 16: (128.0, 0x43000000)}
ADDED = tl.constexpr(tuple(_ADDED[bit][0] for _, bit in _PLACES))
CODE_IN_PLACE = tl.constexpr(
    tuple(f"{{ .reg .b32 t; {move}; lop3.b32 $0, t, {15 << bit}, {_ADDED[bit][1]}, 0xEA; }}" for move, bit in _PLACES)
)
# Words of 32 bits that a thread reads of a row at a time: eight words of 16.
PAIRS = tl.constexpr(4)


@triton.jit
def int4_products_of_one_row(
    x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, begin,
    K: tl.constexpr, GATED: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, STEPS: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products [BLOCK_N, 1] with the rows of gates and ups, and the sum of squares [1], without tensor cores.

    A thread reads eight words of a row, its *chunk*, as four of 32 bits, and as many inputs of each plane.
    """
    counts_from_zero: tl.constexpr = has_offset(scale_ptr, minimum_ptr, "int4")
    chunks: tl.constexpr = BLOCK_K // 32
    sums = tl.zeros([chunks, BLOCK_N], tl.float32)
    up_sums = tl.zeros([chunks if GATED else 1, BLOCK_N], tl.float32)
    squares = tl.zeros([chunks, 1, PAIRS], tl.float32)
    chunk = tl.arange(0, chunks)[:, None, None]
    lane = tl.arange(0, 2 * PAIRS)[None, None, :]
    words_ptr = codes_ptr.to(tl.pointer_type(tl.int32))
    for step in tl.range(STEPS, num_stages=STAGES):
        first = begin + step * BLOCK_K
        words = _words(words_ptr, rows, first, K, BLOCK_K)
        if GATED:
            up_words = _words(words_ptr, up_rows, first, K, BLOCK_K)
        inputs, added, total = (), tl.zeros([chunks, 1, PAIRS], tl.float32), tl.zeros([chunks, 1, PAIRS], tl.float32)
        for plane in tl.static_range(TILE // PLANE):
            start = first + chunk // 4 * TILE + chunk % 4 * 8 + plane * PLANE
            # The compiler does not see that lanes are neighbors.
            columns = tl.max_contiguous(tl.multiple_of(start + lane, [1, 1, 8]), [1, 1, 8])
            x = tl.load(x_ptr + columns, mask=columns < K, other=0.0)
            even, odd = _halves(x, chunks)
            if norm_weight_ptr is not None:
                squares += even * even + odd * odd
                norm_even, norm_odd = _halves(tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0), chunks)
                even, odd = even * (norm_even + norm_offset), odd * (norm_odd + norm_offset)
            inputs += (even, odd)
            added += even * ADDED[plane] + odd * ADDED[4 + plane]
            total += even + odd
        if not counts_from_zero:
            added += 8.0 * total
        all_inputs = tl.sum(total, axis=2) if counts_from_zero else 0.0
        of_chunk = tl.arange(0, chunks)[:, None]
        group = tl.minimum(first + of_chunk // 4 * TILE, K - 1) // GROUP
        sums += _scaled_product(
            words, inputs, added, all_inputs, scale_ptr, minimum_ptr, rows[None, :], group, K, GROUP, GROUP_ROWS
        )
        if GATED:
            up_sums += _scaled_product(
                up_words, inputs, added, all_inputs, scale_ptr, minimum_ptr, up_rows[None, :], group, K, GROUP,
                GROUP_ROWS,
            )  # fmt: skip
    gate = tl.sum(sums, axis=0)[:, None]
    up = tl.sum(up_sums, axis=0)[:, None]
    return gate, up, tl.sum(tl.sum(squares, axis=2), axis=0)


@triton.jit
def _words(words_ptr, rows, first, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Two words of 16 bits in each int32 [chunks, rows, PAIRS]."""
    of_row: tl.constexpr = (K + TILE - 1) // TILE * (PLANE // 2)
    place = first // 8 + tl.arange(0, BLOCK_K // 32)[:, None, None] * PAIRS + tl.arange(0, PAIRS)[None, None, :]
    at = words_ptr + rows[None, :, None].to(tl.int64) * of_row + place
    return tl.load(at, mask=place < of_row, other=0, eviction_policy="evict_first")


@triton.jit
def _halves(x, CHUNKS: tl.constexpr):
    """Eight neighbors as float32: those of the first words of 32 bits, and those of the second."""
    return tl.split(tl.reshape(x.to(tl.float32), (CHUNKS, 1, PAIRS, 2)))


@triton.jit
def _scaled_product(
    words, inputs, added, total, scale_ptr, minimum_ptr, rows, group,
    K: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    product = tl.zeros(words.shape, tl.float32) - added
    for plane in tl.static_range(TILE // PLANE):
        for half in tl.static_range(2):
            code = tl.inline_asm_elementwise(
                CODE_IN_PLACE[4 * half + plane], "=r,r", [words], dtype=tl.float32, is_pure=True, pack=1
            )
            product += code * inputs[2 * plane + half]
    sums = tl.sum(product, axis=2)
    return scaled_sums(sums, total, scale_ptr, minimum_ptr, rows, group, K, "int4", GROUP, GROUP_ROWS)


@triton.constexpr_function
def is_int4_in_pairs(kind, group, precision):
    """Whether `int4_products_of_one_row` multiplies it."""
    return kind == "int4" and group % TILE.value == 0 and precision == "pairs"
