"""The state of the gated delta rule from chunk to chunk on Hopper: a warp loads by TMA, a warpgroup multiplies.

The state and what a chunk adds to it lie transposed, ``[columns, tokens or channels]``: each product takes from
registers what the one before left there.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from atom_kernels.delta.contract import CHUNK
from atom_kernels.delta.triton.sequences import first_of_place, load_sequence, rows_in_chunks
from atom_kernels.triton.support import wait_for_inputs

# Tokens of a chunk. Columns of a program's state are as many, and so are elements of 16 bits in 128 bytes, as wide as
# shared memory is swizzled.
TOKENS = gl.constexpr(CHUNK)
# Rows of factors: those of keys that read, of keys that add, of queries and of the state.
_FACTORS = gl.constexpr(4)


@gluon.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def hopper_scan_kernel(
    qkv_desc, out_desc, inverses_desc, scores_desc, factors_desc, out_ptr, states_ptr, factors_ptr,
    slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr, num_rows, num_sequences, num_kept,
    KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr,
    MORE: gl.constexpr, STAGES: gl.constexpr, LOAD_REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of 64 columns, value heads, sequences]``; `factor_chunks_kernel` tells what it reads.

    Args:
        qkv_desc, out_desc: describe rows, for copies of 64 rows and 64 columns.
        inverses_desc, scores_desc: describe all rows of all chunks and heads, for copies of those of one.
        factors_desc: describes all rows of factors, for copies of 4 rows.
    """
    block, head, place = gl.program_id(0), gl.program_id(1), gl.program_id(2) + 1
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    begin, stop = rows_in_chunks(first, end, context)
    if (slot >= 0) & (begin < stop):
        kept = gl.load(kept_slots_ptr + place * num_kept - 1).to(gl.int64)
        first_of_chunks = begin - (context + begin - first) % TOKENS
        num_chunks = (stop - first_of_chunks + TOKENS - 1) // TOKENS
        of_chunk = first_of_place(place, first, TOKENS, MORE) * HEADS + head
        dtype: gl.constexpr = qkv_desc.dtype
        tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        keys = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, KEY_DIM], tile)
        queries = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, KEY_DIM], tile)
        values = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        inverses = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        scores = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        factors = gl.allocate_shared_memory(gl.float32, [STAGES, _FACTORS, TOKENS], factors_desc.layout)
        staged = gl.allocate_shared_memory(dtype, [TOKENS, TOKENS], tile)
        tiles = (keys, queries, values, inverses, scores, factors)
        full, empty = _barriers(STAGES), _barriers(STAGES)
        columns = block * TOKENS
        wait_for_inputs(DEPENDENT)
        # Rows that went before these left their state where the sequence keeps its last one.
        source = gl.where(begin > first, kept, slot)
        goes_on = ((begin > first) | (context > 0)) & (source >= 0)
        from_ptr = states_ptr + (source * HEADS + head) * (KEY_DIM * VALUE_DIM) + columns
        to_ptr = states_ptr + (kept * HEADS + head) * (KEY_DIM * VALUE_DIM) + columns
        rows = (first_of_chunks, begin, stop, num_chunks)
        gl.warp_specialize(
            [
                (
                    _scan,
                    (tiles, staged, full, empty, out_desc, out_ptr, factors_ptr, from_ptr, to_ptr, goes_on, kept >= 0,
                     rows, of_chunk, head * VALUE_DIM + columns, HEADS, VALUE_DIM),
                ),
                (
                    _load_chunks,
                    (tiles, full, empty, (qkv_desc, inverses_desc, scores_desc, factors_desc), first_of_chunks,
                     num_chunks, of_chunk, head // (HEADS // KEY_HEADS) * KEY_DIM, KEY_HEADS * KEY_DIM,
                     2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + columns, HEADS),
                ),
            ],
            [1],
            [LOAD_REGISTERS],
        )  # fmt: skip


@gluon.jit
def _barriers(number: gl.constexpr):
    """Barriers in shared memory, each for one arrival."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(barriers.index(index), count=1)
    return barriers


@gluon.jit
def _load_chunks(
    tiles, full, empty, descs, first_row, num_chunks, of_chunk, query_column, keys_from, value_column,
    HEADS: gl.constexpr,
):  # fmt: skip
    """Copies what each chunk needs, once the chunk that lay in its place is done with."""
    keys, queries, values, inverses, scores, factors = tiles
    qkv_desc, inverses_desc, scores_desc, factors_desc = descs
    STAGES: gl.constexpr = keys.shape[0]
    PARTS: gl.constexpr = keys.shape[2] // TOKENS
    key_parts = keys._reinterpret(keys.dtype, [STAGES * PARTS, TOKENS, TOKENS], keys.layout)
    query_parts = queries._reinterpret(keys.dtype, [STAGES * PARTS, TOKENS, TOKENS], keys.layout)
    for chunk in range(num_chunks):
        stage = chunk % STAGES
        arrived = full.index(stage)
        row, at = first_row + chunk * TOKENS, of_chunk + chunk * HEADS
        mbarrier.wait(empty.index(stage), (chunk // STAGES + 1) & 1)
        mbarrier.expect(arrived, (2 * PARTS + 3) * TOKENS * TOKENS * 2 + _FACTORS * TOKENS * 4)
        for part in gl.static_range(PARTS):
            column = query_column + part * TOKENS
            tma.async_copy_global_to_shared(
                qkv_desc, [row, column + keys_from], arrived, key_parts.index(stage * PARTS + part)
            )
        tma.async_copy_global_to_shared(qkv_desc, [row, value_column], arrived, values.index(stage))
        tma.async_copy_global_to_shared(factors_desc, [at * _FACTORS, 0], arrived, factors.index(stage))
        tma.async_copy_global_to_shared(inverses_desc, [at * TOKENS, 0], arrived, inverses.index(stage))
        for part in gl.static_range(PARTS):
            column = query_column + part * TOKENS
            tma.async_copy_global_to_shared(qkv_desc, [row, column], arrived, query_parts.index(stage * PARTS + part))
        tma.async_copy_global_to_shared(scores_desc, [at * TOKENS, 0], arrived, scores.index(stage))


@gluon.jit
def _scan(
    tiles, staged, full, empty, out_desc, out_ptr, factors_ptr, from_ptr, to_ptr, goes_on, is_kept, rows, of_chunk,
    out_column, HEADS: gl.constexpr, VALUE_DIM: gl.constexpr,
):  # fmt: skip
    """Carries a state ``[64 columns, channels]`` through the chunks, and stores their outputs."""
    keys, queries, values, inverses, scores, factors = tiles
    first_row, begin, stop, num_chunks = rows
    STAGES: gl.constexpr = keys.shape[0]
    KEY_DIM: gl.constexpr = keys.shape[2]
    dtype: gl.constexpr = keys.dtype
    of_state: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEY_DIM, 16])
    of_tokens: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    by_tokens: gl.constexpr = gl.SliceLayout(0, of_tokens)
    left: gl.constexpr = gl.DotOperandLayout(0, of_tokens, 2)
    left_of_state: gl.constexpr = gl.DotOperandLayout(0, of_state, 2)
    factor_rows = factors._reinterpret(gl.float32, [STAGES * _FACTORS, TOKENS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    channels = gl.arange(0, KEY_DIM, gl.SliceLayout(0, of_state))
    columns = gl.arange(0, TOKENS, gl.SliceLayout(1, of_state))
    within = channels[None, :] * VALUE_DIM + columns[:, None]
    state = gl.load(from_ptr + within, mask=gl.full([TOKENS, KEY_DIM], True, gl.int1, of_state) & goes_on, other=0.0)
    zeros = gl.zeros([TOKENS, TOKENS], gl.float32, of_tokens)
    for chunk in range(num_chunks):
        stage = chunk % STAGES
        row = first_row + chunk * TOKENS
        decay = gl.load(factors_ptr + ((of_chunk + chunk * HEADS).to(gl.int64) * _FACTORS + 3) * TOKENS)
        mbarrier.wait(full.index(stage), (chunk // STAGES) & 1)
        key, is_whole = keys.index(stage), (row >= begin) & (row + TOKENS <= stop)
        if not is_whole:
            _blank_rows(keys, values, stage, begin - row, stop - row)
        before = gl.convert_layout(state.to(dtype), left)
        said = warpgroup_mma(before, key.permute((1, 0)), zeros, use_acc=False, is_async=True)
        value = values.index(stage).permute((1, 0)).load(of_tokens).to(gl.float32)
        reads = factor_rows.index(stage * _FACTORS).load(by_tokens)
        adds = factor_rows.index(stage * _FACTORS + 1).load(by_tokens)
        asks = factor_rows.index(stage * _FACTORS + 2).load(by_tokens)
        said = warpgroup_mma_wait(0, deps=[said])
        wrong = gl.convert_layout((value - said * reads[None, :]).to(dtype), left)
        added = warpgroup_mma(wrong, inverses.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        # What queries read of the state is not waited for: it runs while what is added is made ready.
        out = warpgroup_mma(before, queries.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        state = state * decay
        added = warpgroup_mma_wait(1, deps=[added])
        update = gl.convert_layout((added * adds[None, :]).to(dtype), left_of_state)
        state = warpgroup_mma(update, key, state, is_async=True)
        added = gl.convert_layout(added.to(dtype), left)
        out = warpgroup_mma_wait(1, deps=[out]) * asks[None, :]
        out = warpgroup_mma(added, scores.index(stage).permute((1, 0)), out, is_async=True)
        state = warpgroup_mma_wait(1, deps=[state])
        out = warpgroup_mma_wait(0, deps=[out])
        # The outputs of the chunk before have left, and all warps have read what this one needs.
        tma.store_wait(0)
        gl.thread_barrier()
        mbarrier.arrive(empty.index(stage))
        staged.permute((1, 0)).store(out.to(dtype))
        fence_async_shared()
        gl.thread_barrier()
        if is_whole:
            tma.async_copy_shared_to_global(out_desc, [row, out_column], staged)
        else:
            _store_rows(out_ptr + out_column, staged, row, begin, stop, HEADS * VALUE_DIM)
    tma.store_wait(0)
    if is_kept:
        gl.store(to_ptr + within, state)


@gluon.jit
def _blank_rows(keys, values, stage, begin, stop):
    """Zeros in the rows of a chunk that are not its sequence's: what others have there may be no number."""
    PARTS: gl.constexpr = keys.shape[2] // TOKENS
    key_parts = keys._reinterpret(keys.dtype, [keys.shape[0] * PARTS, TOKENS, TOKENS], keys.layout)
    for part in gl.static_range(PARTS):
        _blank(key_parts.index(stage * PARTS + part), begin, stop)
    _blank(values.index(stage), begin, stop)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _blank(tile, begin, stop):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tokens = gl.arange(0, TOKENS, gl.SliceLayout(1, layout))
    inside = (tokens >= begin) & (tokens < stop)
    tile.store(gl.where(inside[:, None], tile.load(layout), gl.zeros([TOKENS, TOKENS], tile.dtype, layout)))


@gluon.jit
def _store_rows(out_ptr, staged, row, begin, stop, ROW_SIZE: gl.constexpr):
    """Outputs of the rows of a chunk that are its sequence's."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = row + gl.arange(0, TOKENS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    mask = ((rows >= begin) & (rows < stop))[:, None]
    at = rows.to(gl.int64)[:, None] * ROW_SIZE + columns[None, :]
    gl.store(out_ptr + at, staged.load(layout), mask=mask)
