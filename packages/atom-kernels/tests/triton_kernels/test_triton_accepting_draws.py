"""Draws are accepted in Triton as by the contract: ragged rows, padding, more rows than lanes."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.platform import detect_platform
from atom_kernels.sampling import ACCEPT_DRAWS, accept_draws
from atom_kernels.sampling.triton_backend import accept_by_triton

DEVICE = detect_platform().device


def test_ragged_rows_are_those_of_the_contract():
    cases = [case for case in parity_cases(ACCEPT_DRAWS, detect_platform()) if case.backend.startswith("triton")]
    assert len(cases) == 10
    for case in cases:
        assert (problem := mismatch(case.run(), case.expected(), case.tolerance)) is None, f"{case.label}: {problem}"


@pytest.mark.parametrize("num_right", [0, 1, 31, 32, 33, 69, 70])
def test_drafts_of_more_rows_than_a_program_looks_at_together_are_accepted_up_to_the_first_other_one(num_right):
    slots, positions = torch.tensor([1] * 70 + [2] * 3), torch.tensor([*range(70), 5, 6, 7])
    history = torch.randint(0, 9, (4, 80), generator=torch.Generator().manual_seed(0)).int()
    ids = history[slots, positions].long()
    if num_right < 70:
        ids[num_right] = 9
    rows = (ids, torch.zeros(73, 10), slots, positions, history, torch.full((4,), 7, dtype=torch.int32))
    on_device = [row.to(DEVICE, copy=True) for row in rows]
    accept_by_triton(*on_device, padding_slot=0, not_finite=-2)
    accept_draws(*rows, padding_slot=0, not_finite=-2)
    assert on_device[0].tolist() == ids.tolist()
    assert (ids[:70] >= 0).sum() == min(num_right + 1, 70)
    assert torch.equal(on_device[4].cpu(), history)
    assert on_device[5].tolist() == rows[5].tolist() == [7, 69 - min(num_right, 69), 0, 7]
