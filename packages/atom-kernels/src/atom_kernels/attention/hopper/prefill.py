"""Attention of chunks of prompts on Hopper: two warps load tiles by TMA, two warpgroups multiply them by WGMMA.

After FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): programs stay, and take work as they finish it; a
warpgroup's scores of one tile are on their way while the softmax of another runs, and one warpgroup multiplies while
the other has its softmax.

Shapes: T tokens, R requests, H query heads, D head_dim.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from atom_kernels.attention.hopper.loading import ROWS, load_keys, load_values
from atom_kernels.attention.hopper.multiplying import attend_tiles


# What changes from step to step must not make Triton compile again.
@gluon.jit(
    do_not_specialize=["num_requests", "num_tiles", "band", "num_items", "table_stride", "absent_row"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr", "counter_ptr"],
)
def hopper_prefill_kernel(
    q_desc, k_desc, v_desc, sinks_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, block_table_ptr, counter_ptr,
    scale, table_stride, num_requests, num_tiles, band, num_items, absent_row,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, RUNS: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, BLOCK_ROWS: gl.constexpr, HEAD_ROWS: gl.constexpr, HEAD_COLUMNS: gl.constexpr,
    PAGE: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    PART_REGISTERS: gl.constexpr, LOAD_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Programs take items of work in turn: a run of heads and a tile of at most ``128 // GROUP`` tokens of one request.

    Tiles are numbered through the batch as in `prefill_kernel`. Two warpgroups have 64 query rows each. The query heads
    of a key head are RUNS runs of GROUP, a power of two, since rows of a tile are.

    Args:
        q_desc: describes queries ``[T, H, D]``, for copies of a warpgroup's.
        k_desc, v_desc: describe the rows of the cache, as `CacheRows` has them.
        counter_ptr: counts the items taken besides the first of each program; 0 before and after.
        num_tiles, num_items: tiles of a run of heads, and items of all.
        band: runs whose tiles are taken in turn; it divides their number.
        absent_row: the first that the cache does not have.
        BLOCK_ROWS, HEAD_ROWS, HEAD_COLUMNS: how far it is from a cache block, and from a head, to the next.
        PAGE: rows that lie one behind another, of a block or of a tile.
    """
    PARTS: gl.constexpr = 2
    dtype: gl.constexpr = k_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_smem = gl.allocate_shared_memory(dtype, [PARTS, ROWS, HEAD_DIM], layout)
    o_smem = gl.allocate_shared_memory(dtype, [PARTS, ROWS, HEAD_DIM], layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], layout)
    words = gl.allocate_shared_memory(gl.int32, [2, 8], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # Each with barriers of tiles that have arrived, and of places that are free.
    queries = (q_smem, _barriers(PARTS, 1), _barriers(PARTS, 1))
    keys = (k_smem, _barriers(STAGES, 1), _barriers(STAGES, PARTS))
    values = (v_smem, _barriers(STAGES, 1), _barriers(STAGES, PARTS))
    mail = (words, _barriers(2, 1), _barriers(2, PARTS + 1))
    # None cannot be passed to warps, since it has no type.
    HAS_SINKS: gl.constexpr = sinks_ptr is not None
    tensors = (out_ptr, sinks_ptr if HAS_SINKS else out_ptr, o_smem)
    chunks = (query_start_loc_ptr, seq_lens_ptr, num_requests, num_tiles, band)
    cache = (block_table_ptr, table_stride, absent_row)
    gl.warp_specialize(
        [
            (attend_tiles, (0, tensors, scale, queries, keys, values, mail, NUM_HEADS, GROUP, PAGE, HAS_SINKS)),
            (attend_tiles, (1, tensors, scale, queries, keys, values, mail, NUM_HEADS, GROUP, PAGE, HAS_SINKS)),
            (
                load_keys,
                ((q_desc, k_desc), chunks, (counter_ptr, num_items), cache, queries, keys, mail,
                 GROUP, RUNS, BLOCK_SIZE, BLOCK_ROWS, HEAD_ROWS, HEAD_COLUMNS, PAGE),
            ),
            (
                load_values,
                (v_desc, cache, values, mail, RUNS, BLOCK_SIZE, BLOCK_ROWS, HEAD_ROWS, HEAD_COLUMNS, PAGE),
            ),
        ],
        [4, 1, 1],
        [PART_REGISTERS, LOAD_REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _barriers(number: gl.constexpr, count: gl.constexpr):
    """Barriers in shared memory, each for `count` arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(barriers.index(index), count=count)
    return barriers
