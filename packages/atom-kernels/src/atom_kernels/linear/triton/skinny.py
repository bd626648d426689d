"""A linear of few rows in Triton: the weight passes once; norm before and activation, bias and residual after are free.

Programs share the rows in blocks of BLOCK_M, the outputs in blocks of BLOCK_N and the inputs in SPLIT_K parts. The last
program of a block to finish adds up the parts in their order, so that results do not depend on who that is.
Shapes: M rows, K inputs, N outputs; G = 2 weight blocks (gate and up) under an activation, else 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import decode_in_pairs, prefetch_codes
from atom_kernels.linear.triton.low_rank import added_by_adapters, places_of, prefetch_b
from atom_kernels.linear.triton.one_row.packed import packed_products_of_one_row
from atom_kernels.linear.triton.packed import packed_products
from atom_kernels.triton.support import prefetch_to_l2, wait_for_inputs


@triton.jit(do_not_specialize=["num_rows", "eps", "norm_offset"])
def skinny_linear_kernel(
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, minimum_ptr, bias_ptr, norm_weight_ptr, residual_ptr, out_ptr, part_ptr,
    square_ptr, counter_ptr, inner_ptr, places_ptr, b_ptr, num_rows, x_stride, eps, norm_offset,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr, PREFETCH: tl.constexpr, MAKES_WEIGHTS: tl.constexpr, DEPENDENT: tl.constexpr,
    NUM_PLACES: tl.constexpr = 0, RANK: tl.constexpr = 0, BLOCK_R: tl.constexpr = 1, AT_ONCE: tl.constexpr = 1,
    PART_ENDS: tl.constexpr = (),
):  # fmt: skip
    """``out[M, N] = act(rms_norm(x) @ weight.T + bias) + residual``; more rows than BLOCK_M read the weight again.

    The weight is of a KIND of `packed.py`, or "plain": then with a scale for each row where there is `scale_ptr`. Rows
    of x that were rounded have scales where the weight has: one each, or one for each group of inputs.
    """
    # Blocks of rows that read the same weights start together.
    row_block, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = block * BLOCK_N + tl.arange(0, BLOCK_N)
    steps: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)
    even: tl.constexpr = steps * BLOCK_K * SPLIT_K == K
    begin = part * steps * BLOCK_K
    weight_row = tl.where(outputs < N, outputs, 0)
    weight_at = weight_ptr + weight_row.to(tl.int64) * K
    if DEPENDENT:
        # Weights do not depend on other kernels.
        if KIND != "plain":
            prefetch_codes(weight_ptr, weight_row, begin, PREFETCH, K, KIND, BLOCK_K)
            if GATED:
                prefetch_codes(weight_ptr, weight_row + N, begin, PREFETCH, K, KIND, BLOCK_K)
        else:
            _prefetch(weight_at, begin, PREFETCH, K, BLOCK_N, BLOCK_K)
            if GATED:
                _prefetch(weight_at + N * K, begin, PREFETCH, K, BLOCK_N, BLOCK_K)
    if b_ptr is not None:
        places = places_of(places_ptr, rows, num_rows, NUM_PLACES)
        if DEPENDENT and part == 0:
            first = block * BLOCK_N
            outputs_of_b: tl.constexpr = 2 * N if GATED else N
            prefetch_b(b_ptr, places, first, N, outputs_of_b, RANK, BLOCK_R, BLOCK_N)
            if GATED:
                prefetch_b(b_ptr, places, first + N, 2 * N, outputs_of_b, RANK, BLOCK_R, BLOCK_N)
    else:
        places = rows
    wait_for_inputs(DEPENDENT)
    if KIND != "plain" and BLOCK_M == 1:
        gate, up, squares = packed_products_of_one_row(
            x_ptr + row_block * x_stride, weight_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset,
            weight_row, weight_row + N, begin,
            K, GATED, KIND, GROUP, PRECISION, GROUP_ROWS, steps, even, STAGES, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif KIND != "plain":
        gate, up, squares = packed_products(
            x_ptr, x_scale_ptr, weight_ptr, scale_ptr, minimum_ptr, norm_weight_ptr, norm_offset, weight_row,
            weight_row + N, rows, num_rows, x_stride, begin,
            K, GATED, KIND, GROUP, GROUP_ROWS, PRECISION, steps, even, BLOCK_M, BLOCK_N, BLOCK_K, MAKES_WEIGHTS,
        )  # fmt: skip
    elif BLOCK_M == 1:
        gate, up, squares = _products_of_one_row(
            x_ptr + row_block * x_stride, weight_at, norm_weight_ptr, norm_offset, begin,
            N, K, GATED, steps, even, STAGES, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        gate, up, squares = _products(
            x_ptr, weight_at, norm_weight_ptr, norm_offset, rows, num_rows, x_stride, begin,
            N, K, GATED, PRECISION, steps, even, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    if KIND == "plain" and scale_ptr is not None:
        gate *= tl.load(scale_ptr + weight_row)[:, None]
        if GATED:
            up *= tl.load(scale_ptr + weight_row + N)[:, None]
    if KIND == "plain" and x_scale_ptr is not None:
        x_scale = tl.load(x_scale_ptr + tl.where(rows < num_rows, rows, 0))
        gate, up = gate * x_scale[None, :], up * x_scale[None, :]
    if SPLIT_K > 1:
        groups: tl.constexpr = 2 if GATED else 1
        size: tl.constexpr = BLOCK_N * BLOCK_M
        tile = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        block_id = row_block * tl.num_programs(1) + block
        first = part_ptr + block_id.to(tl.int64) * (SPLIT_K * groups * size)
        squares_at = square_ptr + block_id * (SPLIT_K * BLOCK_M) + tl.arange(0, BLOCK_M)
        tl.store(first + part * groups * size + tile, gate)
        if GATED:
            tl.store(first + (part * groups + 1) * size + tile, up)
        if norm_weight_ptr is not None:
            tl.store(squares_at + part * BLOCK_M, squares)
        # All stores of this program come before the count, and the count before the loads of the last program.
        tl.debug_barrier()
        is_last = tl.atomic_add(counter_ptr + block_id, 1, sem="acq_rel") == SPLIT_K - 1
        if is_last:
            gate, up = tl.zeros_like(gate), tl.zeros_like(up)
            squares = tl.zeros_like(squares)
            for other in tl.static_range(SPLIT_K):
                gate += tl.load(first + other * groups * size + tile, cache_modifier=".cg")
                if GATED:
                    up += tl.load(first + (other * groups + 1) * size + tile, cache_modifier=".cg")
                if norm_weight_ptr is not None:
                    squares += tl.load(squares_at + other * BLOCK_M, cache_modifier=".cg")
            tl.store(counter_ptr + block_id, 0)
            _finish(
                gate, up, squares, bias_ptr, norm_weight_ptr, residual_ptr, out_ptr, inner_ptr, b_ptr, places, rows,
                outputs, block * BLOCK_N, num_rows, eps,
                N, K, GATED, RANK, PART_ENDS, AT_ONCE, BLOCK_M, BLOCK_N,
            )  # fmt: skip
    else:
        _finish(
            gate, up, squares, bias_ptr, norm_weight_ptr, residual_ptr, out_ptr, inner_ptr, b_ptr, places, rows,
            outputs, block * BLOCK_N, num_rows, eps,
            N, K, GATED, RANK, PART_ENDS, AT_ONCE, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _prefetch(weight_at, begin, STEPS: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Brings the weights of this program's first steps to the L2 cache."""
    lines: tl.constexpr = BLOCK_K * weight_at.dtype.element_ty.primitive_bitwidth // 1024
    if lines > 0:
        columns = tl.arange(0, lines) * (BLOCK_K // lines)
        for step in range(STEPS):
            at = begin + step * BLOCK_K + columns
            mask = (at < K)[None, :] & (tl.arange(0, BLOCK_N) >= 0)[:, None]
            prefetch_to_l2(weight_at[:, None] + at[None, :], mask)


@triton.jit
def _load_weight(weight_at, columns, K: tl.constexpr, EVEN: tl.constexpr):
    """Rows of the weight [N, K]; those past the end repeat the first, and are not stored."""
    at = weight_at[:, None] + columns[None, :]
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    else:
        return tl.load(at, mask=columns[None, :] < K, other=0.0, eviction_policy="evict_first")


@triton.jit
def _products_of_one_row(
    x_ptr, weight_at, norm_weight_ptr, norm_offset, begin,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products [BLOCK_N, 1] and the sum of squares [1], without tensor cores."""
    sums = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_K if GATED else 1], tl.float32)
    squares = tl.zeros([1, BLOCK_K], tl.float32)
    for step in tl.range(STEPS, num_stages=STAGES):
        # As many weights as inputs a thread, even where they are bytes: else one of them moves through shared memory.
        columns = tl.max_contiguous(begin + step * BLOCK_K + tl.arange(0, BLOCK_K), 8)
        inside = (columns < K)[None, :]
        x = tl.load(x_ptr + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        weight = _load_weight(weight_at, columns, K, EVEN)
        if GATED:
            up_weight = _load_weight(weight_at + N * K, columns, K, EVEN)
        if norm_weight_ptr is not None:
            squares += x * x
            scale = tl.load(norm_weight_ptr + columns[None, :], mask=inside, other=0.0).to(tl.float32)
            x = x * (scale + norm_offset)
        sums += weight.to(tl.float32) * x
        if GATED:
            up_sums += up_weight.to(tl.float32) * x
    return tl.sum(sums, axis=1)[:, None], tl.sum(up_sums, axis=1)[:, None], tl.sum(squares, axis=1)


@triton.jit
def _products(
    x_ptr, weight_at, norm_weight_ptr, norm_offset, rows, num_rows, x_stride, begin,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr, STEPS: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products [BLOCK_N, BLOCK_M] (outputs on the long side of the tensor cores' tile), sums of squares [BLOCK_M]."""
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_sums = tl.zeros([BLOCK_N, BLOCK_M if GATED else 1], tl.float32)
    squares = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for step in range(STEPS):
        columns = begin + step * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (columns < K)[:, None] & (rows < num_rows)[None, :]
        x = tl.load(x_ptr + rows[None, :] * x_stride + columns[:, None], mask=inside, other=0.0)
        weight = _load_weight(weight_at, columns, K, EVEN)
        if norm_weight_ptr is not None:
            wide = x.to(tl.float32)
            squares += wide * wide
            scale = tl.load(norm_weight_ptr + columns, mask=columns < K, other=0.0).to(tl.float32) + norm_offset
            x = (wide * scale[:, None]).to(x.dtype)
        sums = _dot(weight, x, sums, PRECISION)
        if GATED:
            up_sums = _dot(_load_weight(weight_at + N * K, columns, K, EVEN), x, up_sums, PRECISION)
    return sums, up_sums, tl.sum(squares, axis=0)


@triton.jit
def _dot(weight, x, sums, PRECISION: tl.constexpr):
    if PRECISION == "ieee":
        return tl.dot(weight.to(tl.float32), x.to(tl.float32), sums, input_precision="ieee")
    elif weight.dtype == x.dtype:
        # Hopper's own sums of fp8 products are short: they are added up in float32 after that many inputs. Triton would
        # leave it out where a step has fewer.
        most: tl.constexpr = min(weight.shape[1], 128)
        return tl.dot(weight, x, sums, max_num_imprecise_acc=most)
    elif PRECISION == "pairs":
        return tl.dot(decode_in_pairs(weight, 0, "bytes", False), x, sums)
    else:
        return tl.dot(weight.to(x.dtype), x, sums)


@triton.jit
def _finish(
    gate, up, squares, bias_ptr, norm_weight_ptr, residual_ptr, out_ptr, inner_ptr, b_ptr, places, rows, outputs, first,
    num_rows, eps,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, RANK: tl.constexpr, PART_ENDS: tl.constexpr,
    AT_ONCE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adapters, norm, bias, activation and residual, in float32, rounded once."""
    if b_ptr is not None:
        has_adapter = (places > 0)[None, :]
        outputs_of_b: tl.constexpr = 2 * N if GATED else N
        added = added_by_adapters(
            inner_ptr, b_ptr, places, rows, outputs, first, N,
            outputs_of_b, RANK, PART_ENDS, AT_ONCE, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        gate = tl.where(has_adapter, gate + added, gate)
        if GATED:
            added = added_by_adapters(
                inner_ptr, b_ptr, places, rows, outputs + N, first + N, 2 * N,
                outputs_of_b, RANK, PART_ENDS, AT_ONCE, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            up = tl.where(has_adapter, up + added, up)
    if norm_weight_ptr is not None:
        scale = 1.0 / tl.sqrt(squares / K + eps)
        gate, up = gate * scale[None, :], up * scale[None, :]
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + outputs, mask=outputs < N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(bias_ptr + N + outputs, mask=outputs < N, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate = gate / (1.0 + tl.exp(-gate)) * up
    out = tl.trans(gate)
    inside = (rows < num_rows)[:, None] & (outputs < N)[None, :]
    at = rows[:, None].to(tl.int64) * N + outputs[None, :]
    if residual_ptr is not None:
        out += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)
