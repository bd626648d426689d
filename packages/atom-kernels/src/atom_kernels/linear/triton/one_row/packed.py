"""Products of one row with packed weights, in Triton: without tensor cores.

Shapes: chunks of eight codes, rows of the weight (BLOCK_N of them in a program), lanes of a chunk; K inputs in all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import (
    PLANE,
    TILE,
    chunks_of,
    decode,
    decode_in_place,
    float_of_power,
    has_offset,
    powers_of_tile,
    scaled_sums,
)
from atom_kernels.linear.triton.one_row.int4 import int4_products_of_one_row, is_int4_in_pairs


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
                sums += scaled_sums(
                    product, total_of_plane, scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS
                )
                if GATED:
                    product = tl.sum(decode(up_codes, plane, KIND, has_minimum) * x, axis=2)
                    up_sums += scaled_sums(
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
            sums += scaled_sums(
                product_of_rows, all_inputs, scale_ptr, minimum_ptr, rows, group, K, KIND, GROUP, GROUP_ROWS
            )
            if GATED:
                product_of_rows = tl.sum(up_product, axis=2)
                up_sums += scaled_sums(
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
