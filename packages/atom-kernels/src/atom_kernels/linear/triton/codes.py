"""Codes of packed weights in Triton: how they and their scales are read, and decoded in registers.

Codes of four bits lie in words of 16 bits, as `packed_weights.planes` puts them, and powers of two that scale such a
tile in one word of 32. Rows are those of the weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton import packed_weights
from atom_kernels.linear.triton.packed_weights import E2M1_SUM_EXPONENT
from atom_kernels.triton.support import prefetch_to_l2

# Inputs of one tile of words, and of one plane of it.
TILE = tl.constexpr(128)
PLANE = tl.constexpr(32)
# What an exponent lacks whose last bits are those of an e2m1.
_E2M1_BIAS = tl.constexpr(2.0**126)


# The bits of an e4m3 or e2m1 at their places in a bfloat16: its exponent then lacks 120 or 126.
_E4M3_BIAS = tl.constexpr(2.0**120)
_E4M3_PAIR = tl.constexpr(
    "{ .reg .b32 s, t; cvt.u32.u16 t, $1; prmt.b32 t, t, 0, 0x1404; shr.b32 s, t, 4; and.b32 s, s, 0x07F007F0; "
    "and.b32 t, t, 0x80008000; or.b32 $0, s, t; }"
)
_E2M1_PAIR = tl.constexpr(
    (
        "and.b32 $0, $1, 0x81C081C0;",
        "{ .reg .b32 t; shl.b32 t, $1, 3; and.b32 $0, t, 0x81C081C0; }",
        "{ .reg .b32 t; shl.b32 t, $1, 6; and.b32 $0, t, 0x81C081C0; }",
        "{ .reg .b32 s, t; shl.b32 t, $1, 1; and.b32 s, t, 0x80008000; shr.b32 t, $1, 5; and.b32 t, t, 0x01000100; "
        "or.b32 s, s, t; shr.b32 t, $1, 4; and.b32 t, t, 0x00C000C0; or.b32 $0, s, t; }",
    )
)
# A byte is its last seven bits, less 128 where its first is set: both added to 128, which is 0x4300.
_INT8_PAIR = tl.constexpr(
    "{ .reg .b32 s, t; cvt.u32.u16 t, $1; prmt.b32 t, t, 0, 0x4140; and.b32 s, t, 0x007F007F; or.b32 s, s, 0x43004300; "
    "and.b32 t, t, 0x00800080; or.b32 t, t, 0x43004300; sub.bf16x2 $0, s, t; }"
)
# The exponents of scales take up the 126 that those of e2m1 lack, less what sums are multiplied by.
POWER_PLACE = tl.constexpr(126 - E2M1_SUM_EXPONENT)
SUM_SCALE = tl.constexpr(2.0**E2M1_SUM_EXPONENT)
_INT4_PAIR = tl.constexpr(
    tuple(
        # The compiler would take two instructions of "and" and "or".
        f"{{ .reg .b32 t; shr.b32 t, $1, {4 * plane}; lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA; }}"
        for plane in range(4)
    )
)


@triton.jit
def chunks_of(codes_ptr, rows, place, K: tl.constexpr, IS_PLANAR: tl.constexpr, EVEN: tl.constexpr):
    """Codes [chunks, rows, lanes] at places of their rows. Past the end x is zero."""
    if IS_PLANAR:
        words: tl.constexpr = (K + TILE - 1) // TILE * PLANE
        if EVEN:
            return tl.load(codes_ptr + rows.to(tl.int64) * words + place, eviction_policy="evict_first")
        else:
            at = codes_ptr + rows.to(tl.int64) * words + place
            return tl.load(at, mask=place < words, other=0, eviction_policy="evict_first")
    elif EVEN:
        return tl.load(codes_ptr + rows.to(tl.int64) * K + place, eviction_policy="evict_first")
    else:
        at = codes_ptr + rows.to(tl.int64) * K + place
        return tl.load(at, mask=place < K, other=0.0, eviction_policy="evict_first")


@triton.jit
def decode_in_place(codes, plane: tl.constexpr, KIND: tl.constexpr, FROM_ZERO: tl.constexpr):
    """As `decode`, times ``16 ** plane`` for int4, which spares a shift."""
    if KIND == "int4":
        words = codes.to(tl.uint16, bitcast=True).to(tl.int32)
        bits = (words & (15 << (4 * plane))) | 0x4B000000
        return bits.to(tl.float32, bitcast=True) - (8388608.0 + (0 if FROM_ZERO else 8 << (4 * plane)))
    else:
        return decode(codes, plane, KIND, FROM_ZERO)


@triton.jit
def prefetch_codes(
    codes_ptr, rows, first, STEPS, K: tl.constexpr, KIND: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Brings the codes of this program's first steps to the L2 cache."""
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    for step in range(STEPS):
        at = first + step * BLOCK_K
        if is_planar:
            words: tl.constexpr = (K + TILE - 1) // TILE * PLANE
            for line in tl.static_range((BLOCK_K + 255) // 256):
                word = at // 4 + line * 64
                prefetch_to_l2(codes_ptr + rows.to(tl.int64) * words + word, (rows >= 0) & (word < words))
        else:
            for line in tl.static_range((BLOCK_K + 127) // 128):
                column = at + line * 128
                prefetch_to_l2(codes_ptr + rows.to(tl.int64) * K + column, (rows >= 0) & (column < K))


@triton.jit
def codes_of(
    codes_ptr, rows, first, K: tl.constexpr, IS_PLANAR: tl.constexpr, EVEN: tl.constexpr, LANES: tl.constexpr,
    FROM: tl.constexpr = 0,
):  # fmt: skip
    """Codes [rows, lanes] of the inputs from `first` on: bytes, or words of four. Past the end x is zero.

    Words are those of a whole tile, or of its planes' lanes from `FROM` on.
    """
    lane = FROM + tl.arange(0, LANES)[None, :]
    if IS_PLANAR:
        words: tl.constexpr = (K + TILE - 1) // TILE * PLANE
        # Programs of split inputs may begin past the end.
        tile = tl.minimum(first // TILE, (K - 1) // TILE)
        at = codes_ptr + rows[:, None].to(tl.int64) * words + tile * PLANE + lane
        return tl.load(at, eviction_policy="evict_first")
    else:
        at = codes_ptr + rows[:, None].to(tl.int64) * K + first + lane
        if EVEN:
            return tl.load(at, eviction_policy="evict_first")
        else:
            return tl.load(at, mask=first + lane < K, other=0.0, eviction_policy="evict_first")


@triton.jit
def decode(codes, plane: tl.constexpr, KIND: tl.constexpr, FROM_ZERO: tl.constexpr):
    """The float32 numbers of codes: int4 counts from 0 where groups have a minimum, else from -8."""
    if KIND == "int4":
        # 0x4B000000 is 2 ** 23, the last bit of whose mantissa is 1.
        bits = ((codes.to(tl.int32) >> (4 * plane)) & 15) | 0x4B000000
        return bits.to(tl.float32, bitcast=True) - (8388608.0 if FROM_ZERO else 8388616.0)
    elif KIND == "e2m1":
        # The bits go where a bfloat16 has them, which is the upper half of a float32.
        words = codes.to(tl.int32)
        if plane < 3:
            bits = (words << (16 + 3 * plane)) & -2118123520  # 0x81C00000
        else:
            bits = ((words << 17) & -2147483648) | ((words << 11) & 0x01000000) | ((words << 12) & 0x00C00000)
        return bits.to(tl.float32, bitcast=True) * _E2M1_BIAS
    else:
        return codes.to(tl.float32)


@triton.jit
def decode_in_pairs(codes, plane: tl.constexpr, KIND: tl.constexpr, FROM_ZERO: tl.constexpr):
    """As `decode`, in bfloat16, with NVIDIA's instructions for two numbers at a time."""
    if KIND == "int4":
        # 0x4300 is 128, the last bit of whose mantissa is 1.
        number = tl.inline_asm_elementwise(_INT4_PAIR[plane], "=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=2)
        return number - (128.0 if FROM_ZERO else 136.0)
    elif KIND == "e2m1":
        return e2m1_in_place(codes, plane) * _E2M1_BIAS
    elif codes.dtype == tl.float8e4nv:
        number = tl.inline_asm_elementwise(
            _E4M3_PAIR, "=r,h", [codes.to(tl.uint8, bitcast=True)], dtype=tl.bfloat16, is_pure=True, pack=2
        )
        return number * _E4M3_BIAS
    elif codes.dtype == tl.int8:
        return tl.inline_asm_elementwise(_INT8_PAIR, "=r,h", [codes], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        return codes.to(tl.bfloat16)


@triton.jit
def e2m1_in_place(codes, plane: tl.constexpr):
    """bfloat16 of the codes of a plane, times ``2 ** -126``."""
    return tl.inline_asm_elementwise(_E2M1_PAIR[plane], "=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=2)


@triton.jit
def powers_of_tile(scale_ptr, rows, first, K: tl.constexpr):
    """int32 of each row: the e8m0 bytes of the four planes of the tile at `first`."""
    tiles: tl.constexpr = (K + TILE - 1) // TILE
    return tl.load(scale_ptr + rows.to(tl.int64) * tiles + tl.minimum(first // TILE, tiles - 1))


@triton.jit
def float_of_power(byte):
    """float32 of an e8m0 byte; that of 0 is 2 ** -127, which only a subnormal number has."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.constexpr_function
def has_pairs(scale_ptr):
    """Whether words hold a scale and a zero point (int32) or a minimum (uint32), where codes are integers."""
    return scale_ptr.dtype.element_ty in (tl.int32, tl.uint32)


@triton.constexpr_function
def has_offset(scale_ptr, minimum_ptr, kind):
    """Whether codes count from 0, and groups have a minimum or a zero point."""
    return minimum_ptr is not None or (kind == "int4" and has_pairs(scale_ptr))


@triton.constexpr_function
def powers_scale_codes(kind, scale_ptr, x_ptr):
    """Whether powers of two scale e2m1 before the product; float16 holds too few of them."""
    is_scaled_by_powers = kind == "e2m1" and scale_ptr.dtype.element_ty == tl.int32
    return is_scaled_by_powers and x_ptr.dtype.element_ty != tl.float16


@triton.constexpr_function
def is_product_of_tiles(kind, group, makes_weights, scale_ptr, x_ptr):
    """Whether a whole tile of words is multiplied at once: its groups have one scale, or none is left to do."""
    if kind not in ("int4", "e2m1") or group < packed_weights.PLANE:
        return False
    return makes_weights or group % packed_weights.TILE == 0 or powers_scale_codes(kind, scale_ptr, x_ptr)


@triton.jit
def scale_of(
    scale_ptr, minimum_ptr, rows, group, K: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    """float32 of the group of each row, and its minimum: zero where there is none. Those of int4 may share a word."""
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    at = rows // GROUP_ROWS * groups + group
    if KIND == "int4" and has_pairs(scale_ptr):
        pair = tl.load(scale_ptr + at).to(tl.uint32, bitcast=True)
        scale = (pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (pair >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        if scale_ptr.dtype.element_ty == tl.int32:
            second = -second * scale
        return scale, second
    elif scale_ptr.dtype.element_ty == tl.int32:
        powers = powers_of_tile(scale_ptr, rows, group * PLANE, K)
        scale = float_of_power((powers >> group % 4 * 8) & 255)
    else:
        scale = tl.load(scale_ptr + at).to(tl.float32)
    if minimum_ptr is not None:
        return scale, tl.load(minimum_ptr + at).to(tl.float32)
    else:
        return scale, tl.zeros_like(scale)


@triton.jit
def scaled_sums(
    sums, total, scale_ptr, minimum_ptr, rows, group, K: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    """``sums * scale + minimum * total`` with the numbers of the groups; `total` is that of the inputs."""
    scale, minimum = scale_of(scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS)
    if has_offset(scale_ptr, minimum_ptr, KIND):
        return sums * scale + minimum * total
    else:
        return sums * scale


@triton.jit
def scaled_e2m1(codes, powers, plane: tl.constexpr):
    """The float32 weights of a plane; `powers` are those of `powers_of_tile`."""
    return decode(codes, plane, "e2m1", False) * float_of_power((powers >> (8 * plane)) & 255)[:, None]


@triton.jit
def scaled_e2m1_in_pairs(codes, powers, plane: tl.constexpr):
    """As `scaled_e2m1`, in bfloat16 and divided by `SUM_SCALE`: one product takes up what the codes lack too."""
    place = ((powers >> (8 * plane)) & 255) + POWER_PLACE
    return e2m1_in_place(codes, plane) * (place << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)[:, None]
