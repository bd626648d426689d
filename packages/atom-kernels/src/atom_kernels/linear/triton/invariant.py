"""A linear in Triton whose sums do not depend on how many rows there are."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def invariant_linear_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, num_rows,
    N: tl.constexpr, K: tl.constexpr, UPCAST: tl.constexpr, NUM_PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_N: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = x[M, K] @ weight[N, K].T + bias``, in tiles that as many programs as there are processors share.

    Outputs are the long side of the tensor core's tile whatever M is, and inputs are added up in their order by one
    program: every element is the same sum, in a tile of any height.
    """
    row_tiles = tl.cdiv(num_rows, BLOCK_M)
    num_tiles = row_tiles * tl.cdiv(N, BLOCK_N)
    inputs_K = tl.arange(0, BLOCK_K)
    for tile in range(tl.program_id(0), num_tiles, NUM_PROGRAMS):
        # GROUP_N tiles of outputs go through all rows together, so that their weights stay in the L2 cache.
        group = tile // (GROUP_N * row_tiles)
        group_size = tl.minimum(tl.cdiv(N, BLOCK_N) - group * GROUP_N, GROUP_N)
        within = tile % (GROUP_N * row_tiles)
        outputs_N = (group * GROUP_N + within % group_size) * BLOCK_N + tl.arange(0, BLOCK_N)
        rows_M = (within // group_size) * BLOCK_M + tl.arange(0, BLOCK_M)
        # What lies outside repeats the first row or output, and is not stored.
        weight_ptrs_N = weight_ptr + tl.where(outputs_N < N, outputs_N, 0).to(tl.int64) * K
        x_ptrs_M = x_ptr + tl.where(rows_M < num_rows, rows_M, 0).to(tl.int64) * K
        sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for depth in range(0, K, BLOCK_K):
            if K % BLOCK_K == 0:
                weight_NK = tl.load(weight_ptrs_N[:, None] + (depth + inputs_K)[None, :])
                x_MK = tl.load(x_ptrs_M[:, None] + (depth + inputs_K)[None, :])
            else:
                inside_K = (depth + inputs_K < K)[None, :]
                weight_NK = tl.load(weight_ptrs_N[:, None] + (depth + inputs_K)[None, :], mask=inside_K, other=0.0)
                x_MK = tl.load(x_ptrs_M[:, None] + (depth + inputs_K)[None, :], mask=inside_K, other=0.0)
            if UPCAST:
                weight_NK, x_MK = weight_NK.to(tl.float32), x_MK.to(tl.float32)
            sum_NM = tl.dot(weight_NK, tl.trans(x_MK), sum_NM, input_precision="ieee")
        if bias_ptr is not None:
            bias_N = tl.load(bias_ptr + outputs_N, mask=outputs_N < N, other=0.0).to(tl.float32)
            sum_NM += bias_N[:, None]
        out_ptrs_MN = out_ptr + rows_M.to(tl.int64)[:, None] * N + outputs_N[None, :]
        inside_MN = (rows_M < num_rows)[:, None] & (outputs_N < N)[None, :]
        tl.store(out_ptrs_MN, tl.trans(sum_NM).to(out_ptr.dtype.element_ty), mask=inside_MN)
