"""What adapters add: the same bits for a row in every batch, results in float32, and inputs that were not planned."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem
from atom_kernels.cases import mismatch
from atom_kernels.native import native_unavailable
from atom_kernels.select import select

PROBLEM = LowRankProblem(600, (300, 40), 5, 3, torch.bfloat16)
PLACES = torch.tensor([2, 0, 3, 2, 4, 1])
BACKENDS = ["torch", pytest.param("native", marks=pytest.mark.skipif(bool(native_unavailable()), reason="no compiler"))]


def make(backend):
    weights, (y, x, _) = ADD_LOW_RANK.make_inputs(PROBLEM, len(PLACES), torch.Generator().manual_seed(0))
    return weights, y, x, select(ADD_LOW_RANK, PROBLEM, only_backend=backend).prepare(weights)


@pytest.mark.skipif(bool(native_unavailable()), reason="no compiler")
def test_a_row_has_the_same_bits_in_every_batch_in_c():
    _, y, x, kernel = make("native")
    # Rows of wider tensors.
    together = torch.cat((y, y), dim=1)[:, : y.shape[1]]
    kernel(together, torch.cat((x, x), dim=1)[:, : x.shape[1]], PLACES)
    for row in range(len(PLACES)):
        alone = y[row : row + 1].clone()
        kernel(alone, x[row : row + 1], PLACES[row : row + 1])
        assert torch.equal(alone[0], together[row])
        assert torch.equal(together[row], y[row]) == (row in (1, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_may_be_in_float32(backend):
    weights, y, x, kernel = make(backend)
    got, expected = y.float(), y.float()
    kernel(got, x, PLACES)
    ADD_LOW_RANK.reference(PROBLEM, weights, expected, x, PLACES)
    assert mismatch(got, expected, ADD_LOW_RANK.tolerance(PROBLEM)) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_widths_and_dtypes_are_refused(backend):
    _, y, x, kernel = make(backend)
    for given in ((y, x[:, 1:]), (y[:, 1:], x), (y.half(), x), (y, x.float()), (y.t().contiguous().t(), x)):
        with pytest.raises(TypeError, match="add_low_rank was planned for"):
            kernel(*given, PLACES)
