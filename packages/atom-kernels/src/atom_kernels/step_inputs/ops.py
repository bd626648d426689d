"""A step's inputs as operators: problems and inputs to check them on."""

from __future__ import annotations

from functools import partial

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.step_inputs import triton_backend
from atom_kernels.step_inputs.contract import StepInputsProblem, TableWritesProblem, build_step_inputs, write_tables

# Ids, positions and lengths: they are equal or wrong.
_EQUAL = Tolerance(atol=0, rtol=0)
# Those of a slot in the inputs that are made to check backends.
_MAX_TOKENS, _MOST_REJECTED = 700, 8


def _make_writes(problem: TableWritesProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """Runs of none to 600 words, in any order, with other words between them."""
    counts = torch.randint(0, 600, (num_rows,), generator=generator)
    gaps = torch.randint(0, 3, (num_rows,), generator=generator)
    targets = (counts + gaps).cumsum(0) - counts
    writes = torch.stack([targets, counts.cumsum(0) - counts, counts], dim=1)
    values = torch.randint(-(2**31), 2**31, (int(counts.sum()),), generator=generator).to(problem.dtype)
    words = torch.zeros(int((counts + gaps).sum()) + 1, dtype=problem.dtype)
    return {}, (words, writes[torch.randperm(num_rows, generator=generator)], values)


WRITE_TABLES = Op(
    name="write_tables",
    contract=write_tables,
    reference=lambda problem, weights, *inputs: write_tables(*inputs),
    schema="(Tensor(a!) words, Tensor writes, Tensor values) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        Backend.of("triton", "Triton, a program for each run", triton_backend.write_tables_by_triton),
        Backend.of("torch", "torch, a copy for each run", write_tables),
    ),
    written=(0,),
    make_inputs=_make_writes,
    parity_problems=lambda: (TableWritesProblem(),),
    examples=lambda: (TableWritesProblem(),),
    tolerance=lambda problem: _EQUAL,
    work=lambda problem, num_rows: Work(num_rows * 2 * 300 * problem.dtype.itemsize),
)


def _make_batch(problem: StepInputsProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """Decodes and chunks of prompts in slots of any order, with up to three samples each; the last row is padding."""

    def below(bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=generator)

    num_slots, num_blocks = num_rows + 2, -(-_MAX_TOKENS // problem.block_size)
    lengths = torch.where(below(2, num_rows) > 0, 1, 1 + below(_MAX_TOKENS // 2, num_rows))
    num_samples = torch.minimum(below(4, num_rows), lengths)
    rows = torch.stack(
        [
            torch.randperm(num_slots, generator=generator)[:num_rows],
            _MOST_REJECTED + below(_MAX_TOKENS // 2 - _MOST_REJECTED, num_rows),
            lengths,
            lengths.cumsum(0) - lengths,
            num_samples,
            num_samples.cumsum(0) - num_samples,
            torch.randperm(num_slots, generator=generator)[:num_rows],
            below(2, num_rows),
        ]
    )
    num_tokens, groups = int(lengths.sum()), problem.num_groups

    def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full(shape, -7, dtype=dtype)

    buffers = (
        buffer(num_tokens),
        buffer(num_tokens),
        buffer(groups, num_tokens),
        buffer(num_rows + 1, dtype=torch.int32),
        buffer(num_rows, dtype=torch.int32),
        buffer(groups, num_rows, num_blocks, dtype=torch.int32),
        *(buffer(max(int(num_samples.sum()), 1)) for _ in range(3)),
    )
    tables = (below(2**17, num_slots, _MAX_TOKENS).int(), below(2**20, groups, num_slots, num_blocks).int())
    num_rejected = below(_MOST_REJECTED + 1, num_slots).int()
    return {}, (rows.int(), max(num_rows - 1, 1), int(lengths.max()), *tables, num_rejected, *buffers)


BUILD_STEP_INPUTS = Op(
    name="build_step_inputs",
    contract=build_step_inputs,
    reference=lambda problem, weights, *inputs: build_step_inputs(*inputs, block_size=problem.block_size),
    schema="(Tensor rows, int num_reqs, int longest, Tensor history, Tensor block_tables, Tensor num_rejected, "
    "Tensor(a!) input_ids, Tensor(b!) positions, Tensor(c!) slot_mapping, Tensor(d!) query_start_loc, "
    "Tensor(e!) seq_lens, Tensor(f!) block_table, "
    "Tensor(g!) sampled_tokens, Tensor(h!) sample_slots, Tensor(i!) sample_positions) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        Backend(
            name="triton",
            implementation="Triton, a program for each row and 256 tokens",
            bind=lambda problem, weights: partial(triton_backend.build_by_triton, block_size=problem.block_size),
        ),
        Backend(
            name="torch",
            implementation="torch, row by row",
            bind=lambda problem, weights: partial(build_step_inputs, block_size=problem.block_size),
        ),
    ),
    written=tuple(range(6, 15)),
    make_inputs=_make_batch,
    parity_problems=lambda: tuple(StepInputsProblem(size, groups) for size in (4, 16) for groups in (1, 2)),
    examples=lambda: (StepInputsProblem(16, 1),),
    tolerance=lambda problem: _EQUAL,
    # A token is read, and written with its position and its slot; a block table is a sixteenth of it or less.
    work=lambda problem, num_rows: Work(num_rows * _MAX_TOKENS // 8 * (4 + 16 + 8 * problem.num_groups)),
)

OPS = (WRITE_TABLES, BUILD_STEP_INPUTS)
