"""Sequences of a delta net, run in pieces."""

from __future__ import annotations

import torch

from atom_kernels.delta import GATED_DELTA
from atom_kernels.operator import Backend, Op
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with


class Sequences:
    """Rows of some sequences, of which any piece can be run in any order, company and slot."""

    def __init__(self, op: Op, problem: object, backend: Backend, num_rows: int, seed: int = 0) -> None:
        device = detect_platform().device if backend.name == "triton" else "cpu"
        weights, inputs = op.make_inputs(problem, num_rows, torch.Generator().manual_seed(seed))
        inputs = tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs)
        self.weights = {name: weight.to(device) for name, weight in weights.items() if weight is not None}
        num_rows_inputs = 3 if op is GATED_DELTA else 1
        self.rows, self.out = inputs[:num_rows_inputs], inputs[num_rows_inputs]
        self.states = torch.full((9, *inputs[num_rows_inputs + 1].shape[1:]), float("nan"))
        self.states = self.states.to(device, inputs[num_rows_inputs + 1].dtype)
        self._is_delta = op is GATED_DELTA
        self._kernel = plan_with(op, problem, backend).prepare(self.weights)

    def run(self, *pieces: tuple[int, int, int, int], kept: list[list[int]] | None = None) -> torch.Tensor:
        """Outputs of pieces: each a slot, its first row, the row behind it, and how many tokens came before.

        States are kept in the slots `kept` of each piece, or where they were found.
        """
        at = torch.cat([torch.arange(first, end) for _, first, end, _ in pieces])
        lengths = torch.tensor([end - first for _, first, end, _ in pieces])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
        slots = torch.tensor([piece[0] for piece in pieces]).int()
        context = torch.tensor([piece[3] for piece in pieces])
        kept_slots = slots[:, None] if kept is None else torch.tensor(kept).int()
        longest = (int(lengths.max()),) if self._is_delta else ()
        out = torch.full_like(self.out[at], 7.0)
        rows = (x[at] for x in self.rows)
        indices = (slots, kept_slots, starts, (context + lengths).int())
        self._kernel(*rows, out, self.states, *(index.to(out.device) for index in indices), *longest)
        return out
