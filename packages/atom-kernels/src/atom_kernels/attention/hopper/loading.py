"""The warps that load in `hopper_prefill_kernel`: they take items of work, and copy their tiles by TMA.

Shapes: N keys of a tile, D head_dim; a page is a run of rows that lie one behind another, in a cache block or a tile.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from atom_kernels.attention.hopper.work import find_tile, hear, tell

# Rows of a warpgroup's tile: what its four warps multiply at a time.
ROWS = gl.constexpr(64)
# Elements of 16 bits that a copy takes of each row: as wide as shared memory is swizzled, 128 bytes.
CHUNK = gl.constexpr(64)


@gluon.jit
def load_keys(
    descs, chunks, work, cache, queries, keys, mail,
    GROUP: gl.constexpr, RUNS: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_ROWS: gl.constexpr,
    HEAD_ROWS: gl.constexpr, HEAD_COLUMNS: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Takes items of work until none is left, and loads their queries and keys."""
    q_desc, k_desc = descs
    counter_ptr, num_items = work
    BLOCK_N: gl.constexpr = keys[0].shape[1]
    BLOCK_T: gl.constexpr = ROWS // GROUP * queries[0].shape[0]
    item = gl.program_id(0)
    turn = 0
    count = 0
    while item < num_items:
        run, request, start, num_queries, length, first_query = find_tile(item, chunks, BLOCK_T)
        if first_query < num_queries:
            end = gl.minimum(length - num_queries + first_query + BLOCK_T, length)
            num_tiles = gl.maximum((end + BLOCK_N - 1) // BLOCK_N, 1)
            tell(mail, turn, run, request, start, num_queries, length, first_query, num_tiles)
            for step in range(num_tiles):
                rows = _find_pages(
                    cache, request, run // RUNS, (num_tiles - 1 - step) * BLOCK_N, length, BLOCK_N, BLOCK_SIZE,
                    BLOCK_ROWS, HEAD_ROWS, PAGE,
                )  # fmt: skip
                _copy_pages(k_desc, rows, run // RUNS * HEAD_COLUMNS, keys, count + step, PAGE)
                if step == 0:
                    _copy_queries(q_desc, start + first_query, run * GROUP, queries, turn, GROUP)
            count += num_tiles
            turn += 1
        # Not earlier: a program that takes work ahead keeps it from others that finish first.
        taken = gl.atomic_add(counter_ptr, 1, sem="relaxed")
        if taken == num_items - 1:
            # The last of all leaves the counter as it was found.
            gl.store(counter_ptr, 0)
        item = gl.num_programs(0) + taken
    tell(mail, turn, 0, 0, 0, 0, 0, 0, 0)


@gluon.jit
def load_values(
    v_desc, cache, values, mail, RUNS: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_ROWS: gl.constexpr,
    HEAD_ROWS: gl.constexpr, HEAD_COLUMNS: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Values of the items that `load_keys` takes: in a warp of its own, since each copy of a page takes its time."""
    BLOCK_N: gl.constexpr = values[0].shape[1]
    turn = 0
    count = 0
    run, request, _start, _num_queries, length, _first_query, num_tiles = hear(mail, turn, 1)
    while num_tiles > 0:
        for step in range(num_tiles):
            rows = _find_pages(
                cache, request, run // RUNS, (num_tiles - 1 - step) * BLOCK_N, length, BLOCK_N, BLOCK_SIZE,
                BLOCK_ROWS, HEAD_ROWS, PAGE,
            )  # fmt: skip
            _copy_pages(v_desc, rows, run // RUNS * HEAD_COLUMNS, values, count + step, PAGE)
        count += num_tiles
        turn += 1
        run, request, _start, _num_queries, length, _first_query, num_tiles = hear(mail, turn, 1)


@gluon.jit
def _find_pages(
    cache, request, kv_head, first, length,
    BLOCK_N: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_ROWS: gl.constexpr, HEAD_ROWS: gl.constexpr,
    PAGE: gl.constexpr,
):  # fmt: skip
    """First rows in the cache of the pages of the keys ``first:first + N`` of a request."""
    table_ptr, table_stride, absent_row = cache
    table_ptr += request.to(gl.int64) * table_stride
    rows = ()
    for page in gl.static_range(BLOCK_N // PAGE):
        at = first + page * PAGE
        block = gl.load(table_ptr + at // BLOCK_SIZE, mask=at < length, other=0)
        row = block * BLOCK_ROWS + at % BLOCK_SIZE + kv_head * HEAD_ROWS
        # Nothing past the request is read: rows that the cache does not have arrive as zeros.
        rows = rows + (gl.where(at < length, row, absent_row),)  # noqa: RUF005 -- Triton has no stars
    return rows


@gluon.jit
def _copy_pages(desc, rows, column, ring, at, PAGE: gl.constexpr):
    """The tile ``[N, D]`` at `at` of `ring`, page by page, once the one that was there before is done with."""
    ring, full, empty = ring
    STAGES: gl.constexpr = ring.shape[0]
    PAGES: gl.constexpr = ring.shape[1] // PAGE
    CHUNKS: gl.constexpr = ring.shape[2] // CHUNK
    pages = ring._reinterpret(ring.dtype, [STAGES * CHUNKS * PAGES, PAGE, CHUNK], ring.layout)
    stage = at % STAGES
    mbarrier.wait(empty.index(stage), (at // STAGES + 1) & 1)
    mbarrier.expect(full.index(stage), ring.shape[1] * ring.shape[2] * 2)
    for page in gl.static_range(PAGES):
        for chunk in gl.static_range(CHUNKS):
            target = pages.index((stage * CHUNKS + chunk) * PAGES + page)
            tma.async_copy_global_to_shared(desc, [rows[page], column + chunk * CHUNK], full.index(stage), target)


@gluon.jit
def _copy_queries(desc, token, head, queries, turn, GROUP: gl.constexpr):
    """The query rows of each warpgroup, once it is done with the earlier ones."""
    q_smem, full, empty = queries
    PARTS: gl.constexpr = q_smem.shape[0]
    PART_T: gl.constexpr = ROWS // GROUP
    CHUNKS: gl.constexpr = q_smem.shape[2] // CHUNK
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    targets = q_smem._reinterpret(q_smem.dtype, [PARTS * CHUNKS, PART_T, GROUP, CHUNK], layout)
    for part in gl.static_range(PARTS):
        mbarrier.wait(empty.index(part), (turn + 1) & 1)
        mbarrier.expect(full.index(part), ROWS * q_smem.shape[2] * 2)
        for chunk in gl.static_range(CHUNKS):
            target = targets.index(part * CHUNKS + chunk)
            tma.async_copy_global_to_shared(
                desc, [token + part * PART_T, head, chunk * CHUNK], full.index(part), target
            )  # fmt: skip
