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


@gluon.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def hopper_scan_kernel(
    qkv_desc, out_desc, tables_desc, squares_desc, factors_desc, out_ptr, states_ptr,
    slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr,
    num_rows, num_sequences, num_kept, slot_stride,
    KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, KEY_DIM: gl.constexpr, VALUE_DIM: gl.constexpr,
    CHANNEL_GATES: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr, LOAD_REGISTERS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of 64 columns, value heads, sequences]``; `scan_chunks_kernel` tells what it reads.

    Args:
        qkv_desc, out_desc: describe rows, for copies of 64 rows and 64 columns.
        tables_desc, squares_desc: describe all rows of all chunks and heads, for such copies too.
        factors_desc: describes all rows of factors, 64 a row, for copies of those of one chunk and head.
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
        dtype: gl.constexpr = out_desc.dtype
        tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        keys = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, KEY_DIM], tile)
        queries = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, KEY_DIM], tile)
        values = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        inverses = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        scores = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, TOKENS], tile)
        # Without gates of channels it is keys that read the state.
        reads = gl.allocate_shared_memory(dtype, [STAGES, TOKENS, KEY_DIM], tile) if CHANNEL_GATES else keys
        FACTORS: gl.constexpr = factors_desc.block_shape[0]
        factors = gl.allocate_shared_memory(gl.float32, [STAGES, FACTORS, TOKENS], factors_desc.layout)
        staged = gl.allocate_shared_memory(dtype, [TOKENS, TOKENS], tile)
        tiles = (keys, queries, reads, values, inverses, scores, factors)
        full, empty = _barriers(STAGES), _barriers(STAGES)
        columns = block * TOKENS
        wait_for_inputs(DEPENDENT)
        # Rows that went before these left their state where the sequence keeps its last one.
        source = gl.where(begin > first, kept, slot)
        goes_on = ((begin > first) | (context > 0)) & (source >= 0)
        from_ptr = states_ptr + source * slot_stride + head * (KEY_DIM * VALUE_DIM) + columns
        to_ptr = states_ptr + kept * slot_stride + head * (KEY_DIM * VALUE_DIM) + columns
        rows = (first_of_chunks, begin, stop, num_chunks)
        key_column = KEY_HEADS * KEY_DIM + head // (HEADS // KEY_HEADS) * KEY_DIM
        places = (key_column - KEY_HEADS * KEY_DIM, key_column, 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + columns)
        gl.warp_specialize(
            [
                (
                    _scan,
                    (tiles, staged, full, empty, out_desc, out_ptr, from_ptr, to_ptr, goes_on, kept >= 0,
                     rows, head * VALUE_DIM + columns, HEADS, VALUE_DIM, CHANNEL_GATES),
                ),
                (
                    _load_chunks,
                    (tiles, full, empty, (qkv_desc, tables_desc, squares_desc, factors_desc), first_of_chunks,
                     places, num_chunks, of_chunk, HEADS, CHANNEL_GATES),
                ),
            ],
            [1],
            [LOAD_REGISTERS],
        )  # fmt: skip
    else:
        # The kernel behind this one waits for this one only: some program of it must have waited for those before.
        wait_for_inputs(DEPENDENT)


@gluon.jit
def _barriers(number: gl.constexpr):
    """Barriers in shared memory, each for one arrival."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(barriers.index(index), count=1)
    return barriers


@gluon.jit
def _load_chunks(
    tiles, full, empty, descs, first_row, places, num_chunks, of_chunk, HEADS: gl.constexpr,
    CHANNEL_GATES: gl.constexpr,
):  # fmt: skip
    """Copies what each chunk needs, once the chunk that lay in its place is done with; what is used first comes first.

    `places` are the columns of queries, keys and values in a row.
    """
    keys, queries, reads, values, inverses, scores, factors = tiles
    qkv_desc, tables_desc, squares_desc, factors_desc = descs
    query_column, key_column, value_column = places
    STAGES: gl.constexpr = keys.shape[0]
    FACTORS: gl.constexpr = factors.shape[1]
    WIDTH: gl.constexpr = (3 if CHANNEL_GATES else 2) * keys.shape[2] + 3 * TOKENS
    for chunk in range(num_chunks):
        stage = chunk % STAGES
        arrived = full.index(stage)
        row, at = first_row + chunk * TOKENS, of_chunk + chunk * HEADS
        mbarrier.wait(empty.index(stage), (chunk // STAGES + 1) & 1)
        mbarrier.expect(arrived, WIDTH * TOKENS * 2 + FACTORS * TOKENS * 4)
        if CHANNEL_GATES:
            _copy(tables_desc, 3 * at * TOKENS, 0, arrived, reads, stage)
            _copy(tables_desc, (3 * at + 2) * TOKENS, 0, arrived, queries, stage)
        else:
            _copy(qkv_desc, row, key_column, arrived, keys, stage)
            _copy(qkv_desc, row, query_column, arrived, queries, stage)
        tma.async_copy_global_to_shared(factors_desc, [at * FACTORS, 0], arrived, factors.index(stage))
        _copy(qkv_desc, row, value_column, arrived, values, stage)
        _copy(squares_desc, 2 * at * TOKENS, 0, arrived, inverses, stage)
        if CHANNEL_GATES:
            _copy(tables_desc, (3 * at + 1) * TOKENS, 0, arrived, keys, stage)
        _copy(squares_desc, (2 * at + 1) * TOKENS, 0, arrived, scores, stage)


@gluon.jit
def _copy(desc, row, column, arrived, tile, stage):
    """Copies 64 rows to a stage of a tile, 64 columns at a time."""
    PARTS: gl.constexpr = tile.shape[2] // TOKENS
    parts = tile._reinterpret(tile.dtype, [tile.shape[0] * PARTS, TOKENS, TOKENS], tile.layout)
    for part in gl.static_range(PARTS):
        at = [row, column + part * TOKENS]
        tma.async_copy_global_to_shared(desc, at, arrived, parts.index(stage * PARTS + part))


@gluon.jit
def _scan(
    tiles, staged, full, empty, out_desc, out_ptr, from_ptr, to_ptr, goes_on, is_kept, rows,
    out_column, HEADS: gl.constexpr, VALUE_DIM: gl.constexpr, CHANNEL_GATES: gl.constexpr,
):  # fmt: skip
    """Carries a state ``[64 columns, channels]`` through the chunks, and stores their outputs."""
    keys, queries, reads, values, inverses, scores, factors = tiles
    first_row, begin, stop, num_chunks = rows
    STAGES: gl.constexpr = keys.shape[0]
    KEY_DIM: gl.constexpr = keys.shape[2]
    FACTORS: gl.constexpr = factors.shape[1]
    dtype: gl.constexpr = keys.dtype
    of_state: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEY_DIM, 16])
    of_tokens: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    by_tokens: gl.constexpr = gl.SliceLayout(0, of_tokens)
    by_channels: gl.constexpr = gl.SliceLayout(0, of_state)
    left: gl.constexpr = gl.DotOperandLayout(0, of_tokens, 2)
    left_of_state: gl.constexpr = gl.DotOperandLayout(0, of_state, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factor_rows = factors._reinterpret(gl.float32, [STAGES * FACTORS, TOKENS], plain)
    # One number for all channels, or each its own.
    DECAYS: gl.constexpr = KEY_DIM if CHANNEL_GATES else 1
    decays = factors._reinterpret(gl.float32, [STAGES * FACTORS * TOKENS // DECAYS, DECAYS], plain)
    channels = gl.arange(0, KEY_DIM, by_channels)
    columns = gl.arange(0, TOKENS, gl.SliceLayout(1, of_state))
    within = channels[None, :] * VALUE_DIM + columns[:, None]
    state = gl.load(from_ptr + within, mask=gl.full([TOKENS, KEY_DIM], True, gl.int1, of_state) & goes_on, other=0.0)
    zeros = gl.zeros([TOKENS, TOKENS], gl.float32, of_tokens)
    for chunk in range(num_chunks):
        stage = chunk % STAGES
        row = first_row + chunk * TOKENS
        is_whole = (row >= begin) & (row + TOKENS <= stop)
        key, value = keys.index(stage), values.index(stage).permute((1, 0))
        inverse = inverses.index(stage).permute((1, 0))
        mbarrier.wait(full.index(stage), (chunk // STAGES) & 1)
        if not is_whole:
            if CHANNEL_GATES:
                _blank(values.index(stage), begin - row, stop - row)
            else:
                _blank_rows(keys, values, stage, begin - row, stop - row)
            fence_async_shared()
            gl.thread_barrier()
        before = gl.convert_layout(state.to(dtype), left)
        read = reads.index(stage).permute((1, 0))
        if CHANNEL_GATES:
            added = warpgroup_mma(value, inverse, zeros, use_acc=False, is_async=True)
            added = warpgroup_mma(before, read, added, is_async=True)
        else:
            said = warpgroup_mma(before, read, zeros, use_acc=False, is_async=True)
            added = warpgroup_mma(value, inverse, zeros, use_acc=False, is_async=True)
        # What queries read of the state is not waited for: it runs while what is added is made ready.
        out = warpgroup_mma(before, queries.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        if CHANNEL_GATES:
            state = state * decays.index(stage).load(by_channels)[None, :]
            added = warpgroup_mma_wait(1, deps=[added]).to(dtype)
            update = gl.convert_layout(added, left_of_state)
        else:
            norms = factor_rows.index(stage * FACTORS).load(by_tokens)
            said = warpgroup_mma_wait(2, deps=[said])
            wrong = gl.convert_layout((said * -norms[None, :]).to(dtype), left)
            added = warpgroup_mma(wrong, inverse, added, is_async=True)
            state = state * decays.index((stage * FACTORS + 3) * TOKENS).load(by_channels)[None, :]
            adds = factor_rows.index(stage * FACTORS + 1).load(by_tokens)
            asks = factor_rows.index(stage * FACTORS + 2).load(by_tokens)
            out = warpgroup_mma_wait(1, deps=[out]) * asks[None, :]
            added = warpgroup_mma_wait(0, deps=[added])
            update = gl.convert_layout((added * adds[None, :]).to(dtype), left_of_state)
            added = added.to(dtype)
        added = gl.convert_layout(added, left)
        out = warpgroup_mma(added, scores.index(stage).permute((1, 0)), out, is_async=True)
        state = warpgroup_mma(update, key, state, is_async=True)
        # Outputs leave while the state is updated.
        out = warpgroup_mma_wait(1, deps=[out])
        tma.store_wait(0)
        gl.thread_barrier()
        staged.permute((1, 0)).store(out.to(dtype))
        fence_async_shared()
        gl.thread_barrier()
        if is_whole:
            tma.async_copy_shared_to_global(out_desc, [row, out_column], staged)
        else:
            _store_rows(out_ptr + out_column, staged, row, begin, stop, HEADS * VALUE_DIM)
        state = warpgroup_mma_wait(0, deps=[state])
        gl.thread_barrier()
        mbarrier.arrive(empty.index(stage))
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
