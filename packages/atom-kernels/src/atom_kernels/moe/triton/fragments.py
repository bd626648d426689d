"""Grouped products with weights in mxfp4, in Triton: words become the operand of a tensor core in registers.

Words are those of `fragments.fragments`; N, M and K of a tile: rows of the weight, rows of x, inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import SUM_SCALE, TILE, float_of_power
from atom_kernels.linear.triton.packed_weights import E2M1_SUM_EXPONENT
from atom_kernels.moe import fragments

ROWS, WORDS = tl.constexpr(fragments.ROWS), tl.constexpr(fragments.WORDS)
# What an exponent lacks whose last bits are those of an e2m1; and what the exponents of scales take up of it.
_BIAS = tl.constexpr(2.0**126)
_TWO_PLACES = (126 - E2M1_SUM_EXPONENT << 7) * 0x10001
_PLACES = tl.constexpr(fragments.PLACES)
# The four pairs of a word as bfloat16, each times the scale that is one of four bytes: as a bfloat16 in both halves, it
# takes up what exponents lack. Two scales become one word, which the compiler makes once for all words of a row.
_SCALED_PAIRS = tl.constexpr(
    tuple(
        "{ .reg .b32 a, b, c, d, s, t; "
        f"{shift}; and.b32 s, s, 0x7F807F80; add.u32 s, s, {_TWO_PLACES}; prmt.b32 s, s, 0, {half}; "
        "and.b32 a, $8, 0x81C081C0; "
        "shl.b32 t, $8, 4; and.b32 b, t, 0x81C081C0; "
        "shf.l.wrap.b32 t, $8, $8, 10; and.b32 c, t, 0x81C081C0; "
        "shf.l.wrap.b32 t, $8, $8, 14; and.b32 d, t, 0x81808180; "
        "shl.b32 t, $8, 6; and.b32 t, t, 0x00400040; or.b32 d, d, t; "
        "mul.bf16x2 a, a, s; mul.bf16x2 b, b, s; mul.bf16x2 c, c, s; mul.bf16x2 d, d, s; "
        "mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d; }"
        for half in ("0x1010", "0x3232")
        for shift in ("shl.b32 s, $9, 7", "shr.b32 s, $9, 1")
    )
)
_EIGHT = tl.constexpr((tl.bfloat16,) * 8)


@triton.jit
def fragment_product(
    x_ptr, words_ptr, powers_ptr, rows_N, x_rows_M, NO_ROW: tl.constexpr, part, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, ONE_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """float32 [BLOCK_N, BLOCK_M] of rows of the weight [.., DEPTH] and rows of x; those that are `NO_ROW` are zeros.

    `part` of PARTS of the tiles is read. With ONE_ROW all of a tile is decoded before it is multiplied: that takes
    fewer instructions, and with several programs on a processor others multiply meanwhile.
    """
    tiles: tl.constexpr = (DEPTH + TILE - 1) // TILE
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    place_N = rows_N // ROWS * (tiles * ROWS) + rows_N % ROWS
    words_ptrs = words_ptr + (place_N * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    inputs_K = tl.arange(0, TILE)
    x_ptrs = x_ptr + (x_rows_M * DEPTH)[None, :] + inputs_K[:, None]
    is_row_M = (x_rows_M < NO_ROW)[None, :]
    of_part: tl.constexpr = (tiles + PARTS - 1) // PARTS
    for tile in range(part * of_part, tl.minimum((part + 1) * of_part, tiles)):
        words = tl.load(words_ptrs + tile * (ROWS * WORDS), eviction_policy="evict_first")
        powers_N = tl.load(powers_ptr + place_N + tile * ROWS)
        inside = is_row_M
        if tiles * TILE != DEPTH:
            inside = inside & (inputs_K < DEPTH - tile * TILE)[:, None]
        x_KM = tl.load(x_ptrs + tile * TILE, mask=inside, other=0.0)
        weight_NK = _weights(words, powers_N, PRECISION, BLOCK_N)
        if PRECISION == "ieee":
            sum_NM = tl.dot(weight_NK, x_KM.to(tl.float32), sum_NM, input_precision="ieee")
        else:
            if ONE_ROW:
                # Triton would make a plain sum a product that adds up.
                sum_NM = tl.fma(tl.dot(weight_NK.to(x_KM.dtype), x_KM), 1.0, sum_NM)
            else:
                sum_NM = tl.dot(weight_NK.to(x_KM.dtype), x_KM, sum_NM)
    if PRECISION == "pairs":
        sum_NM *= SUM_SCALE
    return sum_NM


@triton.jit
def _weights(words, powers_N, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr):
    """The weights [N, TILE] of words [N, WORDS]; in pairs divided by `SUM_SCALE`."""
    even, odd = tl.split(tl.reshape(words, (BLOCK_N, 4, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    # Each [N, 4 threads, pair, half, b].
    first = _block(first, powers_N, 0, PRECISION)
    second = _block(second, powers_N, 1, PRECISION)
    third = _block(third, powers_N, 2, PRECISION)
    fourth = _block(fourth, powers_N, 3, PRECISION)
    blocks = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(blocks, (0, 6, 5, 4, 3, 1, 2)), (BLOCK_N, TILE))


@triton.jit
def _block(words, powers_N, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """One block of 32 inputs, with its scale."""
    if PRECISION == "pairs":
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _SCALED_PAIRS[BLOCK], "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [words, powers_N[:, None]],
            dtype=_EIGHT, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        scale = float_of_power((powers_N >> (8 * BLOCK)) & 255)[:, None]
        a, b = _code(words, 0, 0) * scale, _code(words, 0, 1) * scale
        c, d = _code(words, 1, 0) * scale, _code(words, 1, 1) * scale
        e, f = _code(words, 2, 0) * scale, _code(words, 2, 1) * scale
        g, h = _code(words, 3, 0) * scale, _code(words, 3, 1) * scale
    return tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))


@triton.jit
def _code(words, PAIR: tl.constexpr, HALF: tl.constexpr):
    """float32 of one half of a pair."""
    sign = (words >> (_PLACES[PAIR][0] + 16 * HALF) % 32) & 1
    exponent = (words >> (_PLACES[PAIR][2] + 16 * HALF) % 32) & 3
    rest = exponent << 1 | (words >> (_PLACES[PAIR][3] + 16 * HALF) % 32) & 1
    return (sign << 31 | rest << 22).to(tl.float32, bitcast=True) * _BIAS
