"""Accepting draws: tokens drawn at and after drafts are compared with them, and join the histories of their requests.

Shapes: n rows that sample, V tokens of the vocabulary, S slots of requests, L tokens of a slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.sampling import native_backend
from atom_kernels.sampling.triton_backend import accept_by_triton

REJECTED = -1
"""What stands in the place of a token behind the first one that is not its draft."""


@dataclass(frozen=True)
class AcceptProblem:
    """Attributes:
    padding_slot: the slot of rows that pad a batch: no request has it, and nothing is written there.
    not_finite: negative, what stands in the place of a token whose logit is not finite.
    """

    padding_slot: int
    not_finite: int


def accept_draws(
    ids_n: torch.Tensor,
    logits_nV: torch.Tensor,
    slots_n: torch.Tensor,
    positions_n: torch.Tensor,
    history_SL: torch.Tensor,
    num_rejected_S: torch.Tensor,
    *,
    padding_slot: int,
    not_finite: int,
) -> None:
    """Keep of each request the tokens that follow what they should, and append what was drawn to the histories.

    Rows of one slot stand together, in the order of their positions. At the position of each but the last a draft
    stands in the history, and the row was drawn as if all drafts before it were the output. So the first token always
    is output, and the next one as long as token and draft are equal; behind the first difference ids are `REJECTED`.
    Whatever the drafts, what is kept is what would be drawn one by one. At temperature 0 this is the greedy rejection
    sampling of Leviathan et al. (arXiv 2211.17192); at others the acceptance rate is that of their method for drafts
    that are not random.

    A token whose logit is not finite is `not_finite`: it equals no draft. Histories get what was drawn at every place,
    rejected or not, and 0 where it was not finite: a step that was submitted already reads a token there.
    Rows of padding stay as they are, and write nothing.

    Args:
        ids_n: int64, drawn in each row; written.
        logits_nV: float32, what they were drawn from.
        slots_n, positions_n: int64, the row of the history for each, and where the token stands there.
        history_SL: int32, the tokens of requests; written.
        num_rejected_S: int32; written for each slot that has rows: how many of them are `REJECTED`.
        padding_slot, not_finite: as in `AcceptProblem`.
    """
    slot_before, is_output = padding_slot, True
    rows = zip(slots_n.tolist(), positions_n.tolist(), ids_n.tolist(), strict=True)
    for row, (slot, position, id_drawn) in enumerate(rows):
        if slot == padding_slot:
            continue
        drawn = id_drawn if logits_nV[row, id_drawn].isfinite() else not_finite
        draft = int(history_SL[slot, position])
        if slot != slot_before:
            is_output, num_rejected_S[slot] = True, 0
        ids_n[row] = drawn if is_output else REJECTED
        num_rejected_S[slot] += not is_output
        history_SL[slot, position] = max(drawn, 0)
        is_output, slot_before = is_output and drawn == draft, slot


def accept_by_torch(
    ids_n: torch.Tensor,
    logits_nV: torch.Tensor,
    slots_n: torch.Tensor,
    positions_n: torch.Tensor,
    history_SL: torch.Tensor,
    num_rejected_S: torch.Tensor,
    *,
    padding_slot: int,
    not_finite: int,
) -> None:
    """`accept_draws` on any device, without waiting for it: a row is output if its request has no miss before it."""
    drawn_logits_n = logits_nV.gather(1, ids_n[:, None]).squeeze(1)
    drawn_n = torch.where(drawn_logits_n.isfinite(), ids_n, not_finite)
    is_padding_n = slots_n == padding_slot
    places_n = torch.where(is_padding_n, 0, positions_n)
    stood_n = history_SL[slots_n, places_n]
    has_draft_n = torch.zeros_like(is_padding_n)
    has_draft_n[:-1] = (slots_n[1:] == slots_n[:-1]) & ~is_padding_n[1:]
    is_miss_n = (has_draft_n & (drawn_n != stood_n)).long()
    num_misses_n = is_miss_n.cumsum(0) - is_miss_n
    is_first_n = torch.ones_like(is_padding_n)
    is_first_n[1:] = ~has_draft_n[:-1]
    num_before_request_n = torch.where(is_first_n, num_misses_n, 0).cummax(0).values
    history_SL[slots_n, places_n] = torch.where(is_padding_n, stood_n, drawn_n.clamp_min(0).int())
    is_rejected_n = (num_misses_n != num_before_request_n) & ~is_padding_n
    num_rejected_S[slots_n] = torch.where(is_padding_n, num_rejected_S[slots_n], 0)
    num_rejected_S.index_add_(0, slots_n, is_rejected_n.int())
    ids_n.copy_(torch.where(is_padding_n, ids_n, torch.where(is_rejected_n, REJECTED, drawn_n)))


def _make_inputs(problem: AcceptProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """Requests of up to six rows, some of padding, in slots of any order; most drafts are right, some logits are not
    finite."""
    num_tokens, vocab_size = 40, 7
    num_slots = max(num_rows, problem.padding_slot) + 2

    def below(bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=generator)

    free = [slot for slot in torch.randperm(num_slots, generator=generator).tolist() if slot != problem.padding_slot]
    rows: list[tuple[int, int]] = []
    while len(rows) < num_rows:
        is_padding, start = not below(5), int(below(num_tokens - 6))
        # A batch may say any position where it is padded.
        slot, start = (problem.padding_slot, start - num_tokens) if is_padding else (free.pop(), start)
        rows += [(slot, start + place) for place in range(1 + int(below(6)))]
    slots, positions = torch.tensor(rows[:num_rows]).T.contiguous()
    ids, history = below(vocab_size, num_rows), below(vocab_size, num_slots, num_tokens).int()
    is_right = (below(4, num_rows) > 0) & (slots != problem.padding_slot)
    history[slots[is_right], positions[is_right]] = ids[is_right].int()
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    values = torch.tensor([float("nan"), float("inf"), float("-inf")])
    return {}, (
        ids,
        torch.where(below(12, num_rows, vocab_size) == 0, values[below(3, num_rows, vocab_size)], logits),
        slots,
        positions,
        history,
        below(9, num_slots).int(),
    )


def _backend(name: str, implementation: str, function: Any, **options: Any) -> Backend:
    """A backend that calls a function with what the problem says."""

    def bind(problem: AcceptProblem, weights: Any) -> Any:
        return partial(function, padding_slot=problem.padding_slot, not_finite=problem.not_finite)

    return Backend(name=name, implementation=implementation, bind=bind, **options)


ACCEPT_DRAWS = Op(
    name="accept_draws",
    contract=accept_draws,
    reference=lambda problem, weights, *inputs: accept_draws(
        *inputs, padding_slot=problem.padding_slot, not_finite=problem.not_finite
    ),
    schema="(Tensor(a!) ids, Tensor logits, Tensor slots, Tensor positions, Tensor(b!) history, "
    "Tensor(c!) num_rejected) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        _backend("triton", "Triton, a program for each request", accept_by_triton),
        _backend("native", "C", native_backend.accept_by_native, supports=native_backend.where_it_compiles),
        _backend("torch", "torch, running sums of misses", accept_by_torch),
    ),
    written=(0, 4, 5),
    make_inputs=_make_inputs,
    parity_problems=lambda: (AcceptProblem(0, -2), AcceptProblem(4, -3)),
    examples=lambda: (AcceptProblem(256, -2),),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    # Read and written: a row's token and what stands in the history; read: its slot, its position and a logit.
    work=lambda problem, num_rows: Work(num_rows * (2 * 8 + 2 * 4 + 8 + 8 + 4)),
)
