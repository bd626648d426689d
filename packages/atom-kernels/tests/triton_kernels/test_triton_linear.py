"""Linears of few rows in Triton, with their neighbors, agree with the reference however they are cut up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform
from atom_kernels.select import select

DEVICE = detect_platform().device
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

WITH_NEIGHBORS = replace(
    LINEAR, parity_problems=lambda: tuple(problem for problem in LINEAR.parity_problems() if problem.neighbors)
)


def make_case(problem, num_rows) -> tuple[dict[str, torch.Tensor | None], tuple[Any, ...], torch.Tensor]:
    weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    here = {name: None if tensor is None else tensor.to(DEVICE) for name, tensor in weights.items()}
    moved = tuple(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in inputs)
    return here, moved, LINEAR.reference(problem, weights, *inputs)


def test_odd_shapes_in_every_dtype_agree_with_the_reference():
    count = 0
    for case in parity_cases(WITH_NEIGHBORS, detect_platform(), only_backend="triton"):
        # A kernel for one row, and one for several.
        if "float" in case.label.split("weight_format=")[1].split()[0] and case.label.endswith(("rows=1", "rows=5")):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count == (21 + 31) * 2


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 35])
@pytest.mark.parametrize("split_k", [1, 2, 3])
def test_any_cut_of_inputs_and_rows_gives_the_same_sums(split_k, num_rows, gated):
    problem = LinearProblem(150, 40, torch.float32, bias=True, gated=gated, neighbors=True)
    weights, inputs, expected = make_case(problem, num_rows)
    kernel = SkinnyLinear(problem, weights, SkinnyConfig(1 if num_rows == 1 else 16, 16, 32, split_k))
    for _ in range(2):  # the count of arrivals must be back at zero
        assert mismatch(kernel(*inputs), expected, LINEAR.tolerance(problem)) is None


@pytest.mark.parametrize("gated", [False, True])
def test_a_norm_apart_and_counters_kept_for_many_rows_change_nothing(gated):
    problem = LinearProblem(150, 40, torch.float32, bias=True, gated=gated, neighbors=True)
    config = SkinnyConfig(16, 16, 32, split_k=2, norm_apart=True)
    for num_rows in (19, 3, 33):  # with and without a norm; more rows than counters at last
        weights, inputs, expected = make_case(problem, num_rows)
        kernel = SkinnyLinear(problem, weights, config, num_rows=19)
        for _ in range(2):
            assert mismatch(kernel(*inputs), expected, LINEAR.tolerance(problem)) is None


def test_strided_rows_and_no_rows_are_served():
    problem = LinearProblem(48, 33, torch.float32, neighbors=True)
    weights, (x, *rest), expected = make_case(problem, 3)
    kernel = select(LINEAR, problem, only_backend="triton").prepare(weights)
    strided = torch.cat((x, x), dim=1)[:, :48]
    assert mismatch(kernel(strided, *rest), expected, LINEAR.tolerance(problem)) is None
    assert kernel(x[:0]).shape == (0, 33)


def test_rows_of_another_width_or_dtype_are_refused():
    problem = LinearProblem(48, 33, torch.float32, neighbors=True)
    kernel = select(LINEAR, problem, only_backend="triton").prepare(make_case(problem, 1)[0])
    with pytest.raises(TypeError, match=r"planned for \[T, 48\] torch.float32, got \[1, 47\]"):
        kernel(torch.zeros(1, 47, device=DEVICE))


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 7, 32, 33, 64, 100, 128, 129])
@pytest.mark.parametrize("sizes", ["1024x4096", "2048x1024", "4096x6144", "12288x4096", "2880x5120"])
def test_shapes_of_real_models_agree_on_a_gpu(sizes, num_rows):
    in_features, out_features = (int(size) for size in sizes.split("x"))
    for gated in (False, True):
        check_on_gpu(LinearProblem(in_features, out_features, torch.bfloat16, gated=gated, neighbors=True), num_rows)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 16, 40])
def test_logits_of_a_real_vocabulary_keep_their_float32_sums_on_a_gpu(num_rows):
    problem = LinearProblem(1024, 151936, torch.bfloat16, out_dtype=torch.float32, neighbors=True)
    check_on_gpu(problem, num_rows, Tolerance(1e-4, 1e-4))


def check_on_gpu(problem, num_rows, tolerance=None):
    generator = torch.Generator("cuda").manual_seed(num_rows)

    def random(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(problem.dtype)

    weights = {"weight": random(problem.weight_rows, problem.in_features) * problem.in_features**-0.5, "bias": None}
    x, norm = random(num_rows, problem.in_features), random(problem.in_features) * 0.1 + 1
    inputs = (x, None if problem.out_dtype else norm, 1e-6, 0.0, random(num_rows, problem.out_features))
    got = select(LINEAR, problem).prepare(weights)(*inputs)
    expected = LINEAR.reference(problem, weights, *inputs)
    found = mismatch(got, expected, tolerance or LINEAR.tolerance(problem))
    assert found is None, f"{problem}: {found}"
