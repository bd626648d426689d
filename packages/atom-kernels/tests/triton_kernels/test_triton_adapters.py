"""What adapters add, in Triton: as the reference, whatever else is in the batch, and nothing for tokens without one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem, LowRankTerm
from atom_kernels.adapters.triton_backend import MOST_TOKENS
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.triton.backend import SKINNY_BACKEND
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
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


def with_term(problem, parts, num_rows, rank=5):
    """Weights and inputs of a linear with its neighbors, and what adapters add to it, on the device."""
    weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    adapters = LowRankProblem(problem.in_features, parts, rank, 3, problem.dtype)
    matrices, (_, _, places) = ADD_LOW_RANK.make_inputs(adapters, num_rows, torch.Generator().manual_seed(0))
    device = detect_platform().device
    matrices = {name: matrix.to(device) for name, matrix in matrices.items()}
    places = (torch.arange(num_rows) % 5).to(device)
    add = select(ADD_LOW_RANK, adapters, only_backend="triton").prepare(matrices)
    term = LowRankTerm(places, matrices["a"], matrices["b"], parts, lambda y, x: add(y, x, places))
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]
    return {name: None if one is None else one.to(device) for name, one in weights.items()}, moved, term


CASES = [
    # Parts that share a block of outputs, and blocks that lie in one part.
    (LinearProblem(96, 70, torch.float32, neighbors=True), (40, 13, 17)),
    (LinearProblem(40, 64, torch.bfloat16, bias=True, neighbors=True), (32, 16, 16)),
    (LinearProblem(40, 24, torch.bfloat16, bias=True, gated=True, neighbors=True), (24, 24)),
]


@pytest.mark.parametrize("num_rows", [1, 9, 18])
@pytest.mark.parametrize(("problem", "parts"), CASES)
def test_a_linear_adds_it_before_what_follows_and_other_rows_keep_their_bits(problem, parts, num_rows):
    weights, inputs, term = with_term(problem, parts, num_rows)
    for split_k in (1, 2):
        linear = SkinnyLinear(problem, weights, SkinnyConfig(1 if num_rows == 1 else 16, 16, 32, split_k), num_rows)
        for places in (term.places_T, (num_rows == 1) + torch.zeros_like(term.places_T)):
            given = term._replace(places_T=places)
            got = linear(*inputs, given)
            expected = LINEAR.reference(problem, weights, *inputs, None, given)
            assert mismatch(got, expected, LINEAR.tolerance(problem)) is None
            has_none = (places == 0) | (places > len(term.a_NRI))
            assert torch.equal(got[has_none], linear(*inputs)[has_none])


def test_a_linear_of_more_rows_leaves_it_to_the_operator():
    problem, parts = CASES[2]
    weights, inputs, term = with_term(problem, parts, MOST_TOKENS + 1)
    counted = []
    term = term._replace(add=lambda y, x, add=term.add: (counted.append(len(y)), add(y, x)))
    got, expected = (
        kernel(*inputs, None, term)
        for kernel in (SKINNY_BACKEND.bind(problem, weights), partial(LINEAR.reference, problem, weights))
    )
    assert counted == [MOST_TOKENS + 1]
    assert mismatch(got, expected, LINEAR.tolerance(problem)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 8, 32, 64])
@pytest.mark.parametrize(("inputs", "parts", "gated"), [(4096, QKV.parts, False), (4096, (12288,) * 2, True)])
def test_linears_of_real_models_add_it_on_a_gpu(inputs, parts, gated, num_rows):
    outputs = parts[0] if gated else sum(parts)
    problem = LinearProblem(inputs, outputs, torch.bfloat16, gated=gated, neighbors=True)
    weights, given, term = with_term(problem, parts, num_rows, rank=16)
    kernel = select(LINEAR, problem, only_backend="triton").prepare(weights)
    got, expected = kernel(*given, None, term), LINEAR.reference(problem, weights, *given, None, term)
    assert mismatch(got, expected, LINEAR.tolerance(problem)) is None
    has_none = (term.places_T == 0) | (term.places_T > 3)
    assert torch.equal(got[has_none], kernel(*given)[has_none])
