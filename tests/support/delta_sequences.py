"""Sequences of a delta net, run in pieces."""

from __future__ import annotations

import torch

from atom_kernels.delta import GATED_DELTA, GatedDeltaProblem
from atom_kernels.operator import Backend, Op
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with

_GAP = 3


class Sequences:
    """Rows of some sequences, of which any piece can be run in any order, company and slot."""

    def __init__(self, op: Op, problem: object, backend: Backend, num_rows: int, seed: int = 0) -> None:
        device = detect_platform().device if backend.name == "triton" else "cpu"
        weights, inputs = op.make_inputs(problem, num_rows, torch.Generator().manual_seed(seed))
        inputs = tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs)
        self.weights = {name: weight.to(device) for name, weight in weights.items() if weight is not None}
        num_rows_inputs = 3 if op is GATED_DELTA else 1
        self.rows, self.out = inputs[:num_rows_inputs], inputs[num_rows_inputs]
        states = inputs[num_rows_inputs + 1]
        # Slots lie apart, as those of a host that keeps more beside a state.
        self._pages = states.new_full((9, states[0].numel() + _GAP), float("nan"))
        self.states = self._pages[:, :-_GAP].view(9, *states.shape[1:])
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
        assert self._pages[:, -_GAP:].isnan().all(), "something between two slots was written"
        return out


def rule_in_float64(
    problem: GatedDeltaProblem,
    weights: dict[str, torch.Tensor],
    rows: tuple[torch.Tensor, ...],
    state_HXV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs ``[T, H, V]`` of one sequence and the state behind it, token by token; it begins with zeros."""
    keys, heads, size, width = problem.num_key_heads, problem.num_value_heads, problem.key_dim, problem.value_dim
    qkv, a, b = (x.double() for x in rows)
    q, k = (
        x.reshape(-1, keys, size).repeat_interleave(heads // keys, 1)
        for x in (qkv[:, : keys * size], qkv[:, keys * size : 2 * keys * size])
    )
    q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() / size**0.5
    k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    v = qkv[:, 2 * keys * size :].reshape(-1, heads, width)
    gates = (a + weights["dt_bias"].double()).reshape(len(a), heads, -1)
    decay = torch.exp(-weights["a_log"].double().exp()[:, None] * (1 + gates.exp()).log())
    beta = 1 / (1 + torch.exp(-b))
    state = qkv.new_zeros(heads, size, width) if state_HXV is None else state_HXV.double().clone()
    out = []
    for t in range(len(qkv)):
        state *= decay[t, ..., None]
        said = (k[t, :, None] @ state)[:, 0]
        state += k[t, ..., None] * (beta[t, :, None] * (v[t] - said))[:, None]
        out.append((q[t, :, None] @ state)[:, 0])
    return torch.stack(out), state
