"""Products of few rows with packed weights, in Triton: codes are decoded in registers, and each passes once.

Codes are multiplied as they are, since every dtype of activations holds them exactly, and sums of groups are scaled;
bytes whose scale is that of a whole row are the plain kernel's (`skinny.py`). Codes of four bits lie in words of
16 bits, as `packed_weights.planes` puts them. Rows are those of the weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
    tuple(
        f"{{ .reg .b32 s, t; shl.b32 s, $1, {12 - 4 * plane}; {'shl' if plane < 2 else 'shr'}.b32 t, $1, "
        f"{abs(6 - 4 * plane)}; and.b32 s, s, 0x80008000; and.b32 t, t, 0x01C001C0; or.b32 $0, s, t; }}"
        for plane in range(4)
    )
)
_INT4_PAIR = tl.constexpr(
    tuple(
        f"{{ .reg .b32 t; shr.b32 t, $1, {4 * plane}; and.b32 t, t, 0x000F000F; or.b32 $0, t, 0x43004300; }}"
        for plane in range(4)
    )
)

# A code at its place in a float32 of 2 ** 23 and more.
_INT4_IN_PLACE = tl.constexpr(tuple(f"lop3.b32 $0, $1, {15 << 4 * plane}, 0x4B000000, 0xEA;" for plane in range(4)))


@triton.jit
def packed_products_of_one_row(
    x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    GROUP_ROWS: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products [BLOCK_N, 1] with the rows of gates and ups, and the sum of squares [1], without tensor cores.

    A thread reads 8 codes of a row at a time, or words with 8 codes in each plane, and as many inputs. All is held as
    [chunks, rows, lanes]: changing between shapes would go through shared memory.
    """
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    has_minimum: tl.constexpr = minimum_ptr is not None
    lanes: tl.constexpr = 8
    planes: tl.constexpr = 4 if is_planar else 1
    chunks: tl.constexpr = BLOCK_K // (lanes * planes)
    # Groups of whole tiles keep their scale for all planes.
    scales_planes: tl.constexpr = is_planar and GROUP < TILE
    sums = tl.zeros([chunks, BLOCK_N, lanes], tl.float32)
    up_sums = tl.zeros([chunks if GATED else 1, BLOCK_N, lanes if GATED else 1], tl.float32)
    squares = tl.zeros([chunks, 1, lanes], tl.float32)
    chunk = tl.arange(0, chunks)[:, None, None]
    lane = tl.arange(0, lanes)[None, None, :]
    rows, up_rows = rows[None, :, None], up_rows[None, :, None]
    for step in tl.range(STEPS, num_stages=STAGES):
        first = begin + step * BLOCK_K
        # The planes of a chunk lie `PLANE` inputs apart.
        start = first + (chunk // 4 * TILE + chunk % 4 * lanes if is_planar else chunk * lanes)
        place = first // planes + chunk * lanes + lane
        codes = _load_chunks(codes_ptr, rows, place, K, is_planar, EVEN)
        product = tl.zeros([chunks, BLOCK_N, lanes], tl.float32)
        total = tl.zeros([chunks, 1, lanes], tl.float32)
        if GATED:
            up_codes = _load_chunks(codes_ptr, up_rows, place, K, is_planar, EVEN)
            up_product = tl.zeros([chunks, BLOCK_N, lanes], tl.float32)
        for plane in tl.static_range(planes):
            # The compiler does not see that lanes are neighbors.
            columns = tl.max_contiguous(tl.multiple_of(start + plane * PLANE + lane, [1, 1, 8]), [1, 1, 8])
            x = tl.load(x_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
            if norm_weight_ptr is not None:
                squares += x * x
                norm = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
                x = x * (norm + norm_offset)
            if scales_planes:
                group = tl.minimum(start + plane * PLANE, K - 1) // GROUP
                number = decode(codes, plane, KIND, has_minimum)
                sums += _scaled(number, 1.0, scale_ptr, minimum_ptr, rows, group, K, GROUP, GROUP_ROWS) * x
                if GATED:
                    number = decode(up_codes, plane, KIND, has_minimum)
                    sums_of = _scaled(number, 1.0, scale_ptr, minimum_ptr, up_rows, group, K, GROUP, GROUP_ROWS)
                    up_sums += sums_of * x
            else:
                total += x
                x = _for_codes_in_place(x, plane, KIND)
                product += _decode_in_place(codes, plane, KIND, has_minimum, PRECISION) * x
                if GATED:
                    up_product += _decode_in_place(up_codes, plane, KIND, has_minimum, PRECISION) * x
        if not scales_planes:
            group = tl.minimum(start, K - 1) // GROUP
            sums += _scaled(product, total, scale_ptr, minimum_ptr, rows, group, K, GROUP, GROUP_ROWS)
            if GATED:
                up_sums += _scaled(up_product, total, scale_ptr, minimum_ptr, up_rows, group, K, GROUP, GROUP_ROWS)
    gate = tl.sum(tl.sum(sums, axis=2), axis=0)[:, None]
    up = tl.sum(tl.sum(up_sums, axis=2), axis=0)[:, None]
    return gate, up, tl.sum(tl.sum(squares, axis=2), axis=0)


@triton.jit
def _load_chunks(codes_ptr, rows, place, K: tl.constexpr, IS_PLANAR: tl.constexpr, EVEN: tl.constexpr):
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
def _decode_in_place(codes, plane: tl.constexpr, KIND: tl.constexpr, FROM_ZERO: tl.constexpr, PRECISION: tl.constexpr):
    """As `decode`, times ``16 ** plane`` for int4, which spares a shift."""
    if KIND == "int4":
        words = codes.to(tl.uint16, bitcast=True).to(tl.int32)
        if PRECISION == "pairs":
            # The compiler would take two instructions.
            bits = tl.inline_asm_elementwise(
                _INT4_IN_PLACE[plane], "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            bits = (words & (15 << (4 * plane))) | 0x4B000000
        return bits.to(tl.float32, bitcast=True) - (8388608.0 + (0 if FROM_ZERO else 8 << (4 * plane)))
    else:
        return decode(codes, plane, KIND, FROM_ZERO)


@triton.jit
def _for_codes_in_place(x, plane: tl.constexpr, KIND: tl.constexpr):
    if KIND == "int4" and plane > 0:
        return x * (1.0 / (1 << (4 * plane)))
    else:
        return x


@triton.jit
def _scaled(
    product, total, scale_ptr, minimum_ptr, rows, group, K: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr
):
    """``product * scale + minimum * total`` with the numbers of the groups."""
    scale, minimum = scale_of(scale_ptr, minimum_ptr, rows, group, K, GROUP, GROUP_ROWS)
    if minimum_ptr is not None:
        return product * scale + minimum * total
    else:
        return product * scale


@triton.jit
def packed_products(
    x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens, num_tokens,
    x_stride, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products [BLOCK_N, BLOCK_M] with the rows of gates and ups, and the sums of squares [BLOCK_M]."""
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    has_minimum: tl.constexpr = minimum_ptr is not None
    lanes: tl.constexpr = PLANE if is_planar else BLOCK_K
    planes: tl.constexpr = BLOCK_K // lanes
    # Groups of whole steps are scaled once; others plane by plane.
    scales_planes: tl.constexpr = GROUP < BLOCK_K
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M if GATED else 1], tl.float32)
    squares = tl.zeros([lanes, BLOCK_M], tl.float32)
    for step in range(STEPS):
        first = begin + step * BLOCK_K
        codes = codes_of(codes_ptr, rows, first, K, is_planar, EVEN, lanes)
        product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if GATED:
            up_codes = codes_of(codes_ptr, up_rows, first, K, is_planar, EVEN, lanes)
            up_product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for plane in tl.static_range(planes):
            columns = first + plane * lanes + tl.arange(0, lanes)
            inside = (columns < K)[:, None] & (tokens < num_tokens)[None, :]
            x = tl.load(x_ptr + tokens[None, :] * x_stride + columns[:, None], mask=inside, other=0.0)
            if norm_weight_ptr is not None:
                wide = x.to(tl.float32)
                squares += wide * wide
                norm = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32) + norm_offset
                x = (wide * norm[:, None]).to(x.dtype)
            product = _dot(codes, plane, x, product, KIND, has_minimum, PRECISION)
            if GATED:
                up_product = _dot(up_codes, plane, x, up_product, KIND, has_minimum, PRECISION)
            if has_minimum:
                total += tl.sum(x.to(tl.float32), axis=0)
            if scales_planes or plane == planes - 1:
                group = tl.minimum(first + plane * lanes, K - 1) // GROUP
                sums += _scaled(
                    product, total[None, :], scale_ptr, minimum_ptr, rows[:, None], group, K, GROUP, GROUP_ROWS
                )
                product = tl.zeros_like(product)
                if GATED:
                    up_sums += _scaled(
                        up_product, total[None, :], scale_ptr, minimum_ptr, up_rows[:, None], group, K, GROUP,
                        GROUP_ROWS,
                    )  # fmt: skip
                    up_product = tl.zeros_like(up_product)
                total = tl.zeros_like(total)
    return sums, up_sums, tl.sum(squares, axis=0)


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
def codes_of(codes_ptr, rows, first, K: tl.constexpr, IS_PLANAR: tl.constexpr, EVEN: tl.constexpr, LANES: tl.constexpr):
    """Codes [rows, lanes] of the inputs from `first` on: bytes, or words of four. Past the end x is zero."""
    lane = tl.arange(0, LANES)[None, :]
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
        sign = (codes.to(tl.int32) << (28 - 4 * plane)) & -2147483648
        rest = (codes.to(tl.int32) << (22 - 4 * plane)) & 0x01C00000
        return (sign | rest).to(tl.float32, bitcast=True) * _E2M1_BIAS
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
        number = tl.inline_asm_elementwise(_E2M1_PAIR[plane], "=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=2)
        return number * _E2M1_BIAS
    elif codes.dtype == tl.float8e4nv:
        number = tl.inline_asm_elementwise(
            _E4M3_PAIR, "=r,h", [codes.to(tl.uint8, bitcast=True)], dtype=tl.bfloat16, is_pure=True, pack=2
        )
        return number * _E4M3_BIAS
    else:
        return codes.to(tl.bfloat16)


@triton.jit
def scale_of(scale_ptr, minimum_ptr, rows, group, K: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """float32 of the group of each row, and its minimum: zero where there is none."""
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    at = rows // GROUP_ROWS * groups + group
    scale = tl.load(scale_ptr + at)
    if scale_ptr.dtype.element_ty == tl.uint8:
        # The exponent of a float32; that of 0 is 2 ** -127, which only a subnormal number has.
        bits = tl.where(scale == 0, 0x00400000, scale.to(tl.int32) << 23)
        scale = bits.to(tl.float32, bitcast=True)
    else:
        scale = scale.to(tl.float32)
    if minimum_ptr is not None:
        return scale, tl.load(minimum_ptr + at).to(tl.float32)
    else:
        return scale, tl.zeros_like(scale)


@triton.jit
def _dot(codes, plane: tl.constexpr, x, sums, KIND: tl.constexpr, FROM_ZERO: tl.constexpr, PRECISION: tl.constexpr):
    if PRECISION == "pairs":
        return tl.dot(decode_in_pairs(codes, plane, KIND, FROM_ZERO), x, sums)
    elif PRECISION == "ieee":
        return tl.dot(decode(codes, plane, KIND, FROM_ZERO), x.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(decode(codes, plane, KIND, FROM_ZERO).to(x.dtype), x, sums)
