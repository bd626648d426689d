"""Draws in Triton are those of the contract, token for token."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform
from atom_kernels.sampling import philox_uniform_host, sample_reference
from atom_kernels.sampling.ops import SAMPLE, SamplingProblem
from atom_kernels.sampling.triton_backend import philox_by_triton, sample_by_triton

DEVICE = detect_platform().device
# Infinite logits make differences of infinities, which NumPy mentions; their weights are 0 by the contract.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def draw(logits, *, uniform=0.5, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    rows = (
        torch.tensor(logits),
        torch.tensor([uniform], dtype=torch.float64),
        *(torch.tensor([value]) for value in (temperature, top_k, top_p, min_p)),
    )
    token = sample_by_triton(*(row.to(DEVICE) for row in rows)).item()
    assert token == sample_reference(*rows).item()
    return token


def test_odd_vocabularies_draw_the_tokens_of_the_reference():
    count = 0
    for case in parity_cases(SAMPLE, detect_platform()):
        if case.backend.startswith("triton"):
            assert (problem := mismatch(case.run(), case.expected(), case.tolerance)) is None, (
                f"{case.label}: {problem}"
            )
            count += 1
    assert count == 25


def test_ties_at_a_threshold_are_all_kept_and_minus_zero_ties_with_zero():
    logits = [[0.0, -0.0, -5.0, 0.0]]
    assert {draw(logits, uniform=u, top_k=1) for u in (0.1, 0.5, 0.9)} == {0, 1, 3}
    assert {draw(logits, uniform=u, top_p=0.01) for u in (0.1, 0.5, 0.9)} == {0, 1, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_infinities_and_nan_have_the_places_of_the_contract(temperature):
    inf, nan = float("inf"), float("nan")
    assert draw([[nan, 1.0, -inf, nan]], temperature=temperature) == 1
    assert draw([[0.0, inf, 3.0, inf]], temperature=temperature, uniform=0.9) in (1, 3)
    draw([[-inf, -inf, -inf]], temperature=temperature)


def test_the_last_token_of_any_weight_is_drawn_at_the_end():
    assert draw([[1.0, 2.0, float("-inf"), 3.0, -1e4, float("-inf")]], uniform=1 - 2**-53) == 3


def test_random_numbers_are_those_of_the_host():
    rows = [(0, 0, 0), (7, 1, 2**40), (-1, 3, 5), (2**63 - 1, 2**33, 9), (-(2**63), 0, 1)]
    got = philox_by_triton(*(torch.tensor(column, device=DEVICE) for column in zip(*rows, strict=True)))
    assert got.tolist() == [philox_uniform_host(*row) for row in rows]


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 60, 256])
def test_a_real_vocabulary_draws_the_tokens_of_the_reference_on_a_gpu(num_rows):
    weights, inputs = SAMPLE.make_inputs(SamplingProblem(151936), num_rows, torch.Generator().manual_seed(num_rows))
    got = sample_by_triton(*(x.cuda() for x in inputs))
    expected = SAMPLE.reference(SamplingProblem(151936), weights, *(x.cuda() for x in inputs))
    assert mismatch(got, expected, Tolerance(0, 0)) is None
