"""Codes in float8 that decodes read two at a time: a word of 16 bits has those of two neighboring columns.

The codes of even columns are one part and those of odd columns another (see `tile`), each in float16: that holds every
e4m3, NVIDIA has an instruction that makes two of them, and words lie in local memory as tensor cores read values, which
bytes do not.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Weights are multiplied by it, so that float16 holds the small ones too.
WEIGHT_UNIT = 2.0**15
_PAIRS = tl.constexpr(
    "{ .reg .b32 t; .reg .b16 low, high; prmt.b32 t, $2, 0, 0x3120; mov.b32 {low, high}, t; "
    "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
)
_BIAS = tl.constexpr(2.0**120)
_BOTH = tl.constexpr((tl.float16, tl.float16))


@triton.constexpr_function
def are_words(cache_ptr):
    """Whether a cache is read in words."""
    return cache_ptr.dtype.element_ty == tl.int16


@triton.jit
def columns_of(part: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, IN_WORDS: tl.constexpr):
    """The columns ``[W]`` of a part: every other one of words, else those beside each other."""
    within = tl.arange(0, BLOCK_D // PARTS)
    if IN_WORDS:
        return PARTS * within + part
    else:
        return part * (BLOCK_D // PARTS) + within


@triton.jit
def parts_of_words(words, UPCAST: tl.constexpr):
    """The numbers of the lower and the upper bytes of int16 words: float16, or float32 where that is multiplied."""
    if UPCAST:
        lower, upper = _number_of(words.to(tl.int32)), _number_of(words.to(tl.int32) >> 8)
    else:
        lower, upper = tl.inline_asm_elementwise(_PAIRS, "=r,=r,r", [words], dtype=_BOTH, is_pure=True, pack=2)
    return lower, upper


@triton.jit
def _number_of(byte):
    """float32 of the last eight bits: those of an e4m3 at their places, whose exponent then lacks 120."""
    return ((byte & 0x80) << 24 | (byte & 0x7F) << 20).to(tl.float32, bitcast=True) * _BIAS


@triton.jit
def rounded_product(x, factor, UPCAST: tl.constexpr):
    """Their product in float32, which no sum that follows takes in unrounded."""
    if UPCAST:
        return x * factor
    else:
        return tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, factor], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def in_halves(q, UPCAST: tl.constexpr):
    """Both parts of queries as float16, and the power of two ``[M]`` that each row was divided by.

    The largest number of a row is then from 2 ** 13 to 2 ** 14. What vanishes beside it is lost in a score too.
    """
    largest = tl.maximum(tl.max(tl.abs(q[0].to(tl.float32)), axis=1), tl.max(tl.abs(q[1].to(tl.float32)), axis=1))
    power = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 40), 240) - 13
    inverse = ((254 - power) << 23).to(tl.float32, bitcast=True)[:, None]
    even, odd = (q[0].to(tl.float32) * inverse).to(tl.float16), (q[1].to(tl.float32) * inverse).to(tl.float16)
    if UPCAST:
        even, odd = even.to(tl.float32), odd.to(tl.float32)
    return (even, odd), (power << 23).to(tl.float32, bitcast=True)
