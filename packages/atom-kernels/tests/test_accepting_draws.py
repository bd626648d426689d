"""Tokens drawn at drafts are kept up to the first other one, and join the histories."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.platform import Facts, Platform, detect_platform, platform_from_facts
from atom_kernels.sampling import ACCEPT_DRAWS, REJECTED, AcceptProblem
from atom_kernels.sampling.drafts import accept_by_torch, accept_draws
from atom_kernels.sampling.native_backend import accept_by_native, unavailable
from atom_kernels.select import select

PADDING, NOT_FINITE = 3, -2
WAYS = {"contract": accept_draws, "torch": accept_by_torch, "c": accept_by_native}
if unavailable() is not None:
    del WAYS["c"]
every_way = pytest.mark.parametrize("accept", WAYS.values(), ids=list(WAYS))


def accepted(accept, drawn, slots, drafts, positions=None, logits=None):
    """The ids, and what stands at the places of the rows; `drafts` stood there, zeros elsewhere."""
    history = torch.zeros(4, 50, dtype=torch.int32)
    if positions is None:
        positions = [5 + slots[:row].count(slot) for row, slot in enumerate(slots)]
    for slot, position, draft in zip(slots, positions, drafts, strict=True):
        history[slot, position] = draft
    ids, logits = torch.tensor(drawn), torch.zeros(len(drawn), 100) if logits is None else logits
    where = (torch.tensor(slots), torch.tensor(positions))
    num_rejected = torch.full((4,), 7, dtype=torch.int32)
    accept(ids, logits, *where, history, num_rejected, padding_slot=PADDING, not_finite=NOT_FINITE)
    stands = history[where].tolist()
    history[where] = 0
    assert not history.any()
    for slot in range(4):
        rows = [row for row, owner in enumerate(slots) if owner == slot != PADDING]
        assert num_rejected[slot] == (sum(ids[row] == REJECTED for row in rows) if rows else 7)
    return ids.tolist(), stands


@every_way
def test_a_request_keeps_its_draws_up_to_the_first_that_is_not_the_draft(accept):
    slots, drafts = [0, 0, 0, 2, 2, 2, 2, 1], [1, 2, 0, 4, 0, 6, 0, 0]
    ids, stands = accepted(accept, [1, 2, 3, 4, 5, 6, 7, 8], slots, drafts)
    assert ids == [1, 2, 3, 4, 5, REJECTED, REJECTED, 8]
    assert stands == [1, 2, 3, 4, 5, 6, 7, 8]


@every_way
def test_what_stands_behind_the_last_draft_is_no_draft(accept):
    """Neither in the request itself nor for the one behind it."""
    assert accepted(accept, [1, 2, 3, 4], [0, 0, 1, 1], [1, 9, 3, 9])[0] == [1, 2, 3, 4]


@every_way
def test_no_row_and_requests_without_drafts_are_left_as_they_are(accept):
    assert accepted(accept, [4, 5, 6], [2, 0, 1], [9, 9, 9]) == ([4, 5, 6], [4, 5, 6])
    none, ids = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    accept(
        ids,
        torch.zeros(0, 7),
        none,
        none,
        torch.zeros(4, 5).int(),
        torch.zeros(4).int(),
        padding_slot=3,
        not_finite=NOT_FINITE,
    )
    assert not len(ids)


@every_way
def test_rows_of_padding_keep_what_was_drawn_and_write_nothing(accept):
    """Whatever their positions; and the requests between them are judged as ever."""
    slots, positions = [PADDING, PADDING, 0, 0, 0, PADDING, PADDING], [-2, -1, 7, 8, 9, 0, 0]
    logits = torch.zeros(7, 100)
    logits[:2] = logits[5:] = float("nan")
    ids, stands = accepted(accept, [5, 6, 1, 2, 3, 7, 8], slots, [0, 0, 2, 2, 0, 0, 0], positions, logits)
    assert ids == [5, 6, 1, REJECTED, REJECTED, 7, 8]
    assert stands == [0, 0, 1, 2, 3, 0, 0]


@every_way
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_token_whose_logit_is_not_finite_says_so_and_equals_no_draft(accept, value):
    logits = torch.zeros(4, 100)
    logits[1, 2] = logits[3, 4] = value
    logits[0, 2] = float("-inf")  # of another token
    ids, stands = accepted(accept, [1, 2, 3, 4], [0, 0, 0, 1], [1, 2, 3, 0], logits=logits)
    assert ids == [1, NOT_FINITE, REJECTED, NOT_FINITE]
    assert stands == [1, 0, 3, 0]


@every_way
def test_more_drafts_than_a_program_looks_at_together_and_logits_of_any_strides(accept):
    drafts = list(range(1, 41))
    drawn, logits = [*drafts[:36], 90, *drafts[37:]], torch.zeros(100, 40).T
    ids, _ = accepted(accept, drawn, [1] * 40, drafts, logits=logits)
    assert ids == [*drafts[:36], 90, REJECTED, REJECTED, REJECTED]


def test_every_backend_that_runs_here_is_the_contract_over_ragged_rows():
    cases = list(parity_cases(ACCEPT_DRAWS, detect_platform()))
    assert len(cases) >= 10
    for case in cases:
        assert (problem := mismatch(case.run(), case.expected(), case.tolerance)) is None, f"{case.label}: {problem}"


@pytest.mark.parametrize(
    ("platform", "backend"),
    [
        (platform_from_facts(Facts()), "native" if unavailable() is None else "torch"),
        (Platform.rocm("gfx942"), "triton"),
        (Platform.nvidia("sm_90"), "triton"),
    ],
    ids=["cpu", "gfx942", "sm_90"],
)
def test_one_backend_serves_any_number_of_rows(platform, backend):
    assert [row.backend for row in select(ACCEPT_DRAWS, AcceptProblem(256, -2), platform).rows] == [backend]


def test_the_work_of_a_row_is_small_and_says_nothing_of_the_vocabulary():
    assert ACCEPT_DRAWS.work(AcceptProblem(0, -2), 5).num_bytes == 5 * 44
