"""The vocabulary lookup in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit(do_not_specialize=["num_ids", "first_id", "num_embeddings"])
def embedding_kernel(
    ids_ptr, table_ptr, out_ptr, num_ids, first_id, num_embeddings,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of ROWS ids, blocks of columns]`` copy rows of SIZE columns; ids outside the table give 0."""
    places = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns[None, :] < SIZE
    asked = places < num_ids
    wait_for_inputs(DEPENDENT)
    # A table may have more elements than 32 bits count.
    rows = tl.load(ids_ptr + places, mask=asked, other=0).to(tl.int64) - first_id
    there = asked & (rows >= 0) & (rows < num_embeddings)
    values = tl.load(table_ptr + rows[:, None] * SIZE + columns[None, :], mask=there[:, None] & inside, other=0.0)
    tl.store(out_ptr + places[:, None] * SIZE + columns[None, :], values, mask=asked[:, None] & inside)
