"""Triton kernels that change the tables of requests, and build a step's inputs from them.

Shapes: R requests, T tokens, G groups of layers, n rows that sample.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["writes_ptr", "values_ptr"])
def write_words_kernel(words_ptr, writes_ptr, values_ptr, BLOCK: tl.constexpr):
    """One program a write: int64 ``[3]`` at `writes_ptr` say which word is the first, which value, and how many."""
    write = writes_ptr + tl.program_id(0) * 3
    target, source, count = tl.load(write), tl.load(write + 1), tl.load(write + 2)
    lanes = tl.arange(0, BLOCK)
    for at in range(0, count, BLOCK):
        inside = at + lanes < count
        values = tl.load(values_ptr + source + at + lanes, mask=inside)
        tl.store(words_ptr + target + at + lanes, values, mask=inside)


@triton.jit(
    do_not_specialize=["num_reqs", "num_rows", "row_stride"],
    do_not_specialize_on_alignment=["rows_ptr"],
)
def build_inputs_kernel(
    rows_ptr, num_reqs, num_rows, row_stride,
    history_ptr, history_stride, tables_ptr, table_group_stride, table_stride, num_rejected_ptr,
    input_ids_ptr, positions_ptr, slot_mapping_ptr, slot_group_stride,
    query_start_loc_ptr, seq_lens_ptr, block_table_ptr, out_group_stride, out_table_stride,
    sampled_tokens_ptr, sample_slots_ptr, sample_positions_ptr,
    BLOCK_SIZE: tl.constexpr, NUM_GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs ``[rows, chunks of BLOCK tokens]``; rows from `num_reqs` on pad the batch, and have no tokens cached.

    `rows_ptr` has int32 ``[8, row_stride]``: slot, start, length, first token in the batch, the number of samples, the
    first place of these among all, the slot into which it samples, and whether rejected drafts are taken off the start.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    slot = tl.load(rows_ptr + row).to(tl.int64)
    is_unsettled = tl.load(rows_ptr + 7 * row_stride + row) != 0
    start = tl.load(rows_ptr + row_stride + row) - tl.load(num_rejected_ptr + slot, mask=is_unsettled, other=0)
    length = tl.load(rows_ptr + 2 * row_stride + row)
    first = tl.load(rows_ptr + 3 * row_stride + row)
    num_samples = tl.load(rows_ptr + 4 * row_stride + row)
    is_real = row < num_reqs
    seq_len = tl.where(is_real, start + length, 0)
    lanes = tl.arange(0, BLOCK)
    if chunk == 0:
        tl.store(query_start_loc_ptr + row, first)
        tl.store(query_start_loc_ptr + row + 1, first + length, mask=row == num_rows - 1)
        tl.store(seq_lens_ptr + row, seq_len)
        places = tl.load(rows_ptr + 5 * row_stride + row) + lanes
        behind, is_sample = num_samples - 1 - lanes, lanes < num_samples
        sample_slots = tl.load(rows_ptr + 6 * row_stride + row).to(tl.int64) + tl.zeros_like(behind)
        tl.store(sampled_tokens_ptr + places, (first + length - 1 - behind).to(tl.int64), mask=is_sample)
        tl.store(sample_slots_ptr + places, sample_slots, mask=is_sample)
        tl.store(sample_positions_ptr + places, (seq_len - behind).to(tl.int64), mask=is_sample)
        for group in tl.static_range(NUM_GROUPS):
            source = tables_ptr + tl.full([], group, tl.int64) * table_group_stride + slot * table_stride
            target = (
                block_table_ptr + tl.full([], group, tl.int64) * out_group_stride + row.to(tl.int64) * out_table_stride
            )
            for at in range(0, tl.cdiv(seq_len, BLOCK_SIZE), BLOCK):
                inside = at + lanes < tl.cdiv(seq_len, BLOCK_SIZE)
                tl.store(target + at + lanes, tl.load(source + at + lanes, mask=inside), mask=inside)
    offset = chunk * BLOCK + lanes
    inside = offset < length
    position = tl.where(is_real, start + offset, 0)
    token = tl.load(history_ptr + slot * history_stride + position, mask=inside & is_real, other=0)
    tl.store(input_ids_ptr + first + offset, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + first + offset, position.to(tl.int64), mask=inside)
    for group in tl.static_range(NUM_GROUPS):
        source = tables_ptr + tl.full([], group, tl.int64) * table_group_stride + slot * table_stride
        block = tl.load(source + position // BLOCK_SIZE, mask=inside & is_real, other=0).to(tl.int64)
        target = tl.where(is_real, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
        tl.store(slot_mapping_ptr + group * slot_group_stride + first + offset, target, mask=inside)
