"""What adapters add, in Triton: as the reference, whatever else is in the batch, and nothing for tokens without one."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.platform import detect_platform
from atom_kernels.select import select

QKV = LowRankProblem(4096, (4096, 1024, 1024), 16, 8, torch.bfloat16)
# Its inputs are summed in more parts than one program has.
DOWN = LowRankProblem(12288, (4096,), 16, 8, torch.bfloat16)


def test_odd_shapes_in_every_dtype_agree_with_the_reference():
    count = 0
    for case in parity_cases(ADD_LOW_RANK, detect_platform(), "triton"):
        if not case.label.endswith(("rows=17", "rows=67")):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count > 30


@pytest.mark.parametrize("result", [torch.bfloat16, torch.float32])
def test_a_row_has_the_same_bits_in_every_batch_and_others_keep_theirs(result):
    problem = LowRankProblem(2100, (48, 16), 16, 3, torch.bfloat16)
    weights, (y, x, _) = ADD_LOW_RANK.make_inputs(problem, 6, torch.Generator().manual_seed(0))
    device = detect_platform().device
    kernel = select(ADD_LOW_RANK, problem, only_backend="triton").prepare(
        {name: weight.to(device) for name, weight in weights.items()}
    )
    y, x, places = y.to(device, result), x.to(device), torch.tensor([2, 0, 3, 2, 4, 1], device=device)
    # Rows of wider tensors.
    together = torch.cat((y, y), dim=1)[:, : y.shape[1]]
    kernel(together, torch.cat((x, x), dim=1)[:, : x.shape[1]], places)
    for row in range(6):
        alone = y[row : row + 1].clone()
        kernel(alone, x[row : row + 1], places[row : row + 1])
        assert torch.equal(alone[0], together[row])
        assert torch.equal(together[row], y[row]) == (row in (1, 4))
    kernel(y[:0], x[:0], places[:0])


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 8, 64])
@pytest.mark.parametrize("problem", [QKV, DOWN], ids=["qkv", "down"])
def test_shapes_of_real_models_agree_on_a_gpu(problem, num_rows):
    weights, inputs = ADD_LOW_RANK.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    weights, (y, *others) = {name: x.cuda() for name, x in weights.items()}, tuple(x.cuda() for x in inputs)
    got, expected = y.clone(), y.clone()
    select(ADD_LOW_RANK, problem, only_backend="triton").prepare(weights)(got, *others)
    ADD_LOW_RANK.reference(problem, weights, expected, *others)
    assert mismatch(got, expected, ADD_LOW_RANK.tolerance(problem)) is None
