"""Products of few rows with packed weights, in Triton: codes are decoded in registers, and each passes once.

Codes are multiplied as they are, since every dtype of activations holds them exactly, and sums of groups are scaled;
on tensor cores powers of two scale the codes themselves, which is exact too. Bytes whose scale is that of a whole row
are the plain kernel's (`skinny.py`). Rows are those of the weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import (
    PLANE,
    SUM_SCALE,
    TILE,
    chunks_of,
    codes_of,
    decode,
    decode_in_pairs,
    decode_in_place,
    float_of_power,
    has_offset,
    is_product_of_tiles,
    powers_of_tile,
    powers_scale_codes,
    scale_of,
    scaled_e2m1,
    scaled_e2m1_in_pairs,
)
from atom_kernels.linear.triton.int4_row import int4_products_of_one_row, is_int4_in_pairs


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
    if is_int4_in_pairs(KIND, GROUP, PRECISION):
        return int4_products_of_one_row(
            x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, begin,
            K, GATED, GROUP, GROUP_ROWS, STEPS, STAGES, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        return _products_of_one_row(
            x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, begin,
            K, GATED, KIND, GROUP, GROUP_ROWS, STEPS, EVEN, STAGES, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@triton.jit
def _products_of_one_row(
    x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    STEPS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As `packed_products_of_one_row`, of all kinds."""
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    has_minimum: tl.constexpr = has_offset(scale_ptr, minimum_ptr, KIND)
    lanes: tl.constexpr = 8
    planes: tl.constexpr = 4 if is_planar else 1
    chunks: tl.constexpr = BLOCK_K // (lanes * planes)
    by_powers: tl.constexpr = KIND == "e2m1" and scale_ptr.dtype.element_ty == tl.int32
    # Groups of whole tiles keep their scale for all planes.
    scales_planes: tl.constexpr = is_planar and GROUP < TILE
    sums = tl.zeros([chunks, BLOCK_N], tl.float32)
    up_sums = tl.zeros([chunks if GATED else 1, BLOCK_N], tl.float32)
    squares = tl.zeros([chunks, 1, lanes], tl.float32)
    chunk = tl.arange(0, chunks)[:, None, None]
    of_chunk = tl.arange(0, chunks)[:, None]
    lane = tl.arange(0, lanes)[None, None, :]
    codes_rows, up_codes_rows = rows[None, :, None], up_rows[None, :, None]
    rows, up_rows = rows[None, :], up_rows[None, :]
    for step in tl.range(STEPS, num_stages=STAGES):
        first = begin + step * BLOCK_K
        first_inputs = first + (of_chunk // 4 * TILE + of_chunk % 4 * lanes if is_planar else of_chunk * lanes)
        # The planes of a chunk lie `PLANE` inputs apart.
        start = first + (chunk // 4 * TILE + chunk % 4 * lanes if is_planar else chunk * lanes)
        place = first // planes + chunk * lanes + lane
        codes = chunks_of(codes_ptr, codes_rows, place, K, is_planar, EVEN)
        if by_powers:
            powers = powers_of_tile(scale_ptr, rows, first_inputs, K)
        product = tl.zeros([chunks, BLOCK_N, lanes], tl.float32)
        total = tl.zeros([chunks, 1, lanes], tl.float32)
        if GATED:
            up_codes = chunks_of(codes_ptr, up_codes_rows, place, K, is_planar, EVEN)
            if by_powers:
                up_powers = powers_of_tile(scale_ptr, up_rows, first_inputs, K)
            up_product = tl.zeros([chunks, BLOCK_N, lanes], tl.float32)
        for plane in tl.static_range(planes):
            # The compiler does not see that lanes are neighbors.
            columns = tl.max_contiguous(tl.multiple_of(start + plane * PLANE + lane, [1, 1, 8]), [1, 1, 8])
            x = tl.load(x_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
            if norm_weight_ptr is not None:
                squares += x * x
                norm = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
                x = x * (norm + norm_offset)
            if by_powers:
                # Lanes are those of one thread.
                power = float_of_power((powers >> (8 * plane)) & 255)
                sums += tl.sum(decode(codes, plane, KIND, False) * x, axis=2) * power
                if GATED:
                    power = float_of_power((up_powers >> (8 * plane)) & 255)
                    up_sums += tl.sum(decode(up_codes, plane, KIND, False) * x, axis=2) * power
            elif scales_planes:
                group = tl.minimum(first_inputs + plane * PLANE, K - 1) // GROUP
                total_of_plane = tl.sum(x, axis=2) if has_minimum else 0.0
                product = tl.sum(decode(codes, plane, KIND, has_minimum) * x, axis=2)
                sums += _scaled(
                    product, total_of_plane, scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS
                )
                if GATED:
                    product = tl.sum(decode(up_codes, plane, KIND, has_minimum) * x, axis=2)
                    up_sums += _scaled(
                        product, total_of_plane, scale_ptr, minimum_ptr, up_rows, group, K, KIND, GROUP, GROUP_ROWS
                    )
            else:
                total += x
                x = _for_codes_in_place(x, plane, KIND)
                product += decode_in_place(codes, plane, KIND, has_minimum) * x
                if GATED:
                    up_product += decode_in_place(up_codes, plane, KIND, has_minimum) * x
        if not by_powers and not scales_planes:
            group = tl.minimum(first_inputs, K - 1) // GROUP
            all_inputs = tl.sum(total, axis=2) if has_minimum else 0.0
            product_of_rows = tl.sum(product, axis=2)
            sums += _scaled(
                product_of_rows, all_inputs, scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS
            )
            if GATED:
                product_of_rows = tl.sum(up_product, axis=2)
                up_sums += _scaled(
                    product_of_rows, all_inputs, scale_ptr, minimum_ptr, up_rows, group, K, KIND, GROUP, GROUP_ROWS
                )
    gate = tl.sum(sums, axis=0)[:, None]
    up = tl.sum(up_sums, axis=0)[:, None]
    return gate, up, tl.sum(tl.sum(squares, axis=2), axis=0)


@triton.jit
def _for_codes_in_place(x, plane: tl.constexpr, KIND: tl.constexpr):
    if KIND == "int4" and plane > 0:
        return x * (1.0 / (1 << (4 * plane)))
    else:
        return x


@triton.jit
def _scaled(
    product,
    total,
    scale_ptr,
    minimum_ptr,
    rows,
    group,
    K: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):
    """``product * scale + minimum * total`` with the numbers of the groups."""
    scale, minimum = scale_of(scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS)
    if has_offset(scale_ptr, minimum_ptr, KIND):
        return product * scale + minimum * total
    else:
        return product * scale


@triton.jit
def packed_products(
    x_ptr, x_scale_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens,
    num_tokens, x_stride, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, MAKES_WEIGHTS: tl.constexpr = False,
):  # fmt: skip
    """Products [BLOCK_N, BLOCK_M] with the rows of gates and ups, and the sums of squares [BLOCK_M].

    Rows of x that were rounded to fp8 have a scale for each group of inputs, as the weight has.
    """
    if is_product_of_tiles(KIND, GROUP, MAKES_WEIGHTS, scale_ptr, x_ptr):
        return _products_of_tiles(
            x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens, num_tokens,
            x_stride, begin,
            K, GATED, KIND, GROUP, GROUP_ROWS, PRECISION, STEPS, BLOCK_M, BLOCK_N, BLOCK_K, MAKES_WEIGHTS,
        )  # fmt: skip
    else:
        return _products_of_parts(
            x_ptr, x_scale_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens,
            num_tokens, x_stride, begin,
            K, GATED, KIND, GROUP, GROUP_ROWS, PRECISION, STEPS, EVEN, BLOCK_M, BLOCK_N, BLOCK_K, MAKES_WEIGHTS,
        )  # fmt: skip


@triton.jit
def _products_of_tiles(
    x_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens, num_tokens,
    x_stride, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, STEPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    MAKES_WEIGHTS: tl.constexpr,
):  # fmt: skip
    """As `packed_products`, of words: the planes of a tile are one product, whose operand they are in registers."""
    scales_codes: tl.constexpr = powers_scale_codes(KIND, scale_ptr, x_ptr)
    tiles: tl.constexpr = (BLOCK_K + TILE - 1) // TILE
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M if GATED else 1], tl.float32)
    squares = tl.zeros([TILE, BLOCK_M], tl.float32)
    for step in range(STEPS):
        for tile in tl.static_range(tiles):
            first = begin + step * BLOCK_K + tile * TILE
            columns = first + tl.arange(0, TILE)
            inside = (columns < K)[:, None] & (tokens < num_tokens)[None, :]
            x = tl.load(x_ptr + tokens[None, :] * x_stride + columns[:, None], mask=inside, other=0.0)
            if norm_weight_ptr is not None:
                wide = x.to(tl.float32)
                squares += wide * wide
                norm = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32) + norm_offset
                x = (wide * norm[:, None]).to(x.dtype)
            sums = _with_tile(
                sums, x, codes_ptr, scale_ptr, minimum_ptr, rows, first,
                K, KIND, GROUP, GROUP_ROWS, PRECISION, MAKES_WEIGHTS, scales_codes,
            )  # fmt: skip
            if GATED:
                up_sums = _with_tile(
                    up_sums, x, codes_ptr, scale_ptr, minimum_ptr, up_rows, first,
                    K, KIND, GROUP, GROUP_ROWS, PRECISION, MAKES_WEIGHTS, scales_codes,
                )  # fmt: skip
    if scales_codes and PRECISION == "pairs":
        sums, up_sums = sums * SUM_SCALE, up_sums * SUM_SCALE
    return sums, up_sums, tl.sum(squares, axis=0)


@triton.jit
def _with_tile(
    sums, x, codes_ptr, scale_ptr, minimum_ptr, rows, first,
    K: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    MAKES_WEIGHTS: tl.constexpr, SCALES_CODES: tl.constexpr,
):  # fmt: skip
    """`sums` and the products with the tile at `first`: with its weights, or its codes if sums of groups are scaled."""
    has_minimum: tl.constexpr = has_offset(scale_ptr, minimum_ptr, KIND)
    codes = codes_of(codes_ptr, rows, first, K, True, True, PLANE)
    multiplied = x.to(tl.float32) if PRECISION == "ieee" else x
    if SCALES_CODES:
        powers = powers_of_tile(scale_ptr, rows, first, K)
        planes = ()
        for plane in tl.static_range(TILE // PLANE):
            planes += (_scaled_plane(codes, powers, plane, multiplied, PRECISION),)
        return tl.dot(_side_by_side(planes), multiplied, sums, input_precision="ieee")
    elif MAKES_WEIGHTS:
        planes = ()
        for plane in tl.static_range(TILE // PLANE):
            if GROUP < TILE or plane == 0:
                group = tl.minimum(first + plane * PLANE, K - 1) // GROUP
                scale, minimum = scale_of(scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS)
            planes += (_weights(codes, plane, scale, minimum, multiplied, KIND, has_minimum, PRECISION),)
        return tl.dot(_side_by_side(planes), multiplied, sums, input_precision="ieee")
    else:
        planes = ()
        for plane in tl.static_range(TILE // PLANE):
            planes += (_plane(codes, plane, multiplied, KIND, has_minimum, PRECISION),)
        product = tl.dot(_side_by_side(planes), multiplied, input_precision="ieee")
        total = tl.sum(x.to(tl.float32), axis=0)[None, :] if has_minimum else 0.0
        group = tl.minimum(first, K - 1) // GROUP
        return sums + _scaled(
            product, total, scale_ptr, minimum_ptr, rows[:, None], group, K, KIND, GROUP, GROUP_ROWS
        )  # fmt: skip


@triton.jit
def _side_by_side(planes):
    """Four planes [N, PLANE] as [N, TILE]: nothing moves, since a thread holds the same lanes of all."""
    pairs = tl.join(tl.join(planes[0], planes[2]), tl.join(planes[1], planes[3]))
    return tl.reshape(tl.permute(pairs, (0, 2, 3, 1)), (planes[0].shape[0], TILE))


@triton.jit
def _plane(codes, plane: tl.constexpr, x, KIND: tl.constexpr, FROM_ZERO: tl.constexpr, PRECISION: tl.constexpr):
    if PRECISION == "pairs":
        return decode_in_pairs(codes, plane, KIND, FROM_ZERO)
    else:
        return decode(codes, plane, KIND, FROM_ZERO).to(x.dtype)


@triton.jit
def _scaled_plane(codes, powers, plane: tl.constexpr, x, PRECISION: tl.constexpr):
    """As `_plane`, of e2m1 with the powers of their tiles; in pairs, divided by `SUM_SCALE`."""
    if PRECISION == "pairs":
        return scaled_e2m1_in_pairs(codes, powers, plane)
    else:
        return scaled_e2m1(codes, powers, plane).to(x.dtype)


@triton.jit
def _products_of_parts(
    x_ptr, x_scale_ptr, codes_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, rows, up_rows, tokens,
    num_tokens, x_stride, begin,
    K: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, MAKES_WEIGHTS: tl.constexpr,
):  # fmt: skip
    """As `packed_products`, of bytes, and of words in groups of which each has a product of its own."""
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    has_minimum: tl.constexpr = has_offset(scale_ptr, minimum_ptr, KIND)
    # Inputs that are multiplied at once: a plane, or as many of it as share a scale; of bytes the whole step.
    lanes: tl.constexpr = min(PLANE, GROUP) if is_planar else BLOCK_K
    cuts: tl.constexpr = PLANE // lanes if is_planar else 1
    planes: tl.constexpr = BLOCK_K // (lanes * cuts)
    # Groups of whole steps are scaled once; others part by part.
    scales_parts: tl.constexpr = GROUP < BLOCK_K
    groups: tl.constexpr = (K + GROUP - 1) // GROUP
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M if GATED else 1], tl.float32)
    squares = tl.zeros([lanes, BLOCK_M], tl.float32)
    for step in range(STEPS):
        first = begin + step * BLOCK_K
        product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if GATED:
            up_product = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for cut in tl.static_range(cuts):
            codes = codes_of(codes_ptr, rows, first, K, is_planar, EVEN, lanes, cut * lanes)
            if GATED:
                up_codes = codes_of(codes_ptr, up_rows, first, K, is_planar, EVEN, lanes, cut * lanes)
            for plane in tl.static_range(planes):
                start = first + plane * PLANE + cut * lanes
                columns = start + tl.arange(0, lanes)
                inside = (columns < K)[:, None] & (tokens < num_tokens)[None, :]
                x = tl.load(x_ptr + tokens[None, :] * x_stride + columns[:, None], mask=inside, other=0.0)
                if norm_weight_ptr is not None:
                    wide = x.to(tl.float32)
                    squares += wide * wide
                    norm = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32) + norm_offset
                    x = (wide * norm[:, None]).to(x.dtype)
                if MAKES_WEIGHTS:
                    if scales_parts or (cut == 0 and plane == 0):
                        group = tl.minimum(start, K - 1) // GROUP
                        scale, minimum = scale_of(scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS)
                        if GATED:
                            up_scale, up_minimum = scale_of(
                                scale_ptr, minimum_ptr, up_rows, group, K, KIND, GROUP, GROUP_ROWS
                            )
                    weight = _weights(codes, plane, scale, minimum, x, KIND, has_minimum, PRECISION)
                    sums = tl.dot(weight, x.to(weight.dtype), sums, input_precision="ieee")
                    if GATED:
                        weight = _weights(up_codes, plane, up_scale, up_minimum, x, KIND, has_minimum, PRECISION)
                        up_sums = tl.dot(weight, x.to(weight.dtype), up_sums, input_precision="ieee")
                else:
                    product = _dot(codes, plane, x, product, KIND, has_minimum, PRECISION)
                    if GATED:
                        up_product = _dot(up_codes, plane, x, up_product, KIND, has_minimum, PRECISION)
                    if has_minimum:
                        total += tl.sum(x.to(tl.float32), axis=0)
                    if scales_parts or (cut == cuts - 1 and plane == planes - 1):
                        group = tl.minimum(start, K - 1) // GROUP
                        if x_scale_ptr is not None:
                            at = x_scale_ptr + tokens * groups + group
                            x_scale = tl.load(at, mask=tokens < num_tokens, other=0.0)[None, :]
                            product *= x_scale
                            if GATED:
                                up_product *= x_scale
                        sums += _scaled(
                            product,
                            total[None, :],
                            scale_ptr,
                            minimum_ptr,
                            rows[:, None],
                            group,
                            K,
                            KIND,
                            GROUP,
                            GROUP_ROWS,
                        )
                        product = tl.zeros_like(product)
                        if GATED:
                            up_sums += _scaled(
                                up_product, total[None, :], scale_ptr, minimum_ptr, up_rows[:, None], group, K, KIND,
                                GROUP, GROUP_ROWS,
                            )  # fmt: skip
                            up_product = tl.zeros_like(up_product)
                        total = tl.zeros_like(total)
    return sums, up_sums, tl.sum(squares, axis=0)


@triton.jit
def _weights(
    codes, plane: tl.constexpr, scale, minimum, x, KIND: tl.constexpr, FROM_ZERO: tl.constexpr, PRECISION: tl.constexpr
):
    """The weights of a plane, rounded once to the dtype in which they are multiplied."""
    if PRECISION == "pairs":
        weight = decode_in_pairs(codes, plane, KIND, FROM_ZERO).to(tl.float32) * scale[:, None]
    else:
        weight = decode(codes, plane, KIND, FROM_ZERO) * scale[:, None]
    if FROM_ZERO:
        weight += minimum[:, None]
    if PRECISION == "pairs":
        return weight.to(tl.bfloat16)
    else:
        return weight if PRECISION == "ieee" else weight.to(x.dtype)


@triton.jit
def _dot(codes, plane: tl.constexpr, x, sums, KIND: tl.constexpr, FROM_ZERO: tl.constexpr, PRECISION: tl.constexpr):
    if PRECISION != "ieee" and codes.dtype == x.dtype:
        # Hopper's own sums of fp8 products are short; these are of one group.
        return tl.dot(codes, x, sums)
    elif PRECISION == "pairs":
        return tl.dot(decode_in_pairs(codes, plane, KIND, FROM_ZERO), x, sums)
    elif PRECISION == "ieee":
        return tl.dot(decode(codes, plane, KIND, FROM_ZERO), x.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(decode(codes, plane, KIND, FROM_ZERO).to(x.dtype), x, sums)
