"""Delta nets: requests that decode, and a prompt that begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from atom_kernels.delta import GATED_DELTA, SHORT_CONV, GatedDeltaProblem, ShortConvProblem
from atom_kernels.delta.work import conv_work, delta_work
from atom_kernels.operator import Op, Work
from atom_kernels.select import select
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.case import DTYPE, Call, KernelCase, Sides, bind, random, serving_row
from benchmarks.kernels.shapes import DeltaHeads

# A step of more rows is a prompt.
_MOST_DECODES = 256


def cases(model: str, heads: DeltaHeads, rows: tuple[int, ...]) -> Iterator[KernelCase]:
    dim = heads.head_dim
    delta = GatedDeltaProblem(heads.num_key_heads, heads.num_value_heads, dim, dim, DTYPE, heads.channel_gates)
    conv = ShortConvProblem(delta.channels, heads.conv_width, DTYPE)
    for num_rows in rows:
        decodes = num_rows <= _MOST_DECODES
        # A request that decodes reads its state and writes it; a prompt begins with none.
        num_states = 2 * num_rows if decodes else 1
        label = f"decode {num_rows}" if decodes else f"prompt of {num_rows}"
        yield _case(GATED_DELTA, delta, model, label, num_rows, delta_work(delta, num_rows, num_states))
        yield _case(SHORT_CONV, conv, model, label, num_rows, conv_work(conv, num_rows, num_states))


def _case(op: Op, problem: Any, model: str, label: str, num_rows: int, work: Work) -> KernelCase:
    def build() -> Sides:
        plan = select(op, problem)
        weights = {name: random(*spec.shape, dtype=spec.dtype) for name, spec in op.weights(problem).items()}
        kernel = plan.prepare(weights)
        ours: list[Call] = [bind(kernel, make_step(op, problem, num_rows)) for _ in range(num_copies(work.num_bytes))]
        # Torch's own asks the host where sequences begin: no graph holds it.
        return Sides(serving_row(plan, num_rows).implementation, ours)

    return KernelCase(op.name, model, label, work, build)


def make_step(op: Op, problem: Any, num_rows: int) -> tuple[Any, ...]:
    """Inputs on the GPU: each sequence has a slot of its own, and keeps its state in place."""
    decodes = num_rows <= _MOST_DECODES
    num_sequences, query_len = (num_rows, 1) if decodes else (1, num_rows)
    slots = torch.randperm(num_sequences, device="cuda").int()
    starts = query_len * torch.arange(num_sequences + 1, device="cuda", dtype=torch.int32)
    lengths = torch.full_like(slots, 1000 if decodes else num_rows)
    indices = (slots, slots[:, None], starts, lengths)
    if op is SHORT_CONV:
        x = random(num_rows, problem.channels)
        return x, torch.empty_like(x), random(num_sequences, problem.channels, problem.width - 1), *indices
    heads, dims = problem.num_value_heads, (problem.key_dim, problem.value_dim)
    inputs = (random(num_rows, size) for size in (problem.channels, problem.gates, heads))
    out = torch.empty(num_rows, heads, problem.value_dim, dtype=DTYPE, device="cuda")
    return *inputs, out, random(num_sequences, heads, *dims, dtype=torch.float32), *indices, query_len
