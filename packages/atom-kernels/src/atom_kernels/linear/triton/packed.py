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
    codes_of,
    decode,
    decode_in_pairs,
    has_offset,
    is_product_of_tiles,
    powers_of_tile,
    powers_scale_codes,
    scale_of,
    scaled_e2m1,
    scaled_e2m1_in_pairs,
    scaled_sums,
)


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
        return sums + scaled_sums(
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
                        sums += scaled_sums(
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
                            up_sums += scaled_sums(
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
