"""The linear in AMX tiles, on any CPU: without AMX, tiles are imitated in C."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.native_tiles import TILES_BACKEND
from atom_kernels.native import native_unavailable
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with

pytestmark = pytest.mark.skipif(native_unavailable("linear_tiles") is not None, reason="no C compiler")


def _bound(problem, weights):
    [backend] = [one for one in LINEAR.backends if one.implementation == TILES_BACKEND.implementation]
    return plan_with(LINEAR, problem, backend).prepare(weights)


def _weights(problem):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(problem.out_features, problem.in_features, generator=generator).bfloat16()
    bias = torch.randn(problem.out_features, generator=generator).bfloat16() if problem.bias else None
    return {"weight": weight, "bias": bias}


@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 31, 32, 33, 70, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (64, 40), (1056, 65), (544, 32)])
def test_tiles_give_the_products_rounded_once(num_rows, inputs, outputs):
    problem = LinearProblem(inputs, outputs, torch.bfloat16, bias=outputs % 2 == 0)
    weights = _weights(problem)
    x = torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = 0 if weights["bias"] is None else weights["bias"].double()
    exact = x.double() @ weights["weight"].double().T + bias
    found = _bound(problem, weights)(x)
    # Half a unit in the last of 8 places, and what float32 sums are off by.
    assert torch.all((found.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-3)


def test_a_row_has_the_same_bits_beside_any_number_of_others():
    problem = LinearProblem(1056, 65, torch.bfloat16, bias=True)
    linear = _bound(problem, _weights(problem))
    x = torch.randn(70, 1056).bfloat16()
    alone = torch.cat([linear(row) for row in x.split(1)])
    for num_rows in (2, 16, 17, 32, 33, 70):
        assert torch.equal(linear(x[:num_rows]), alone[:num_rows])


def test_results_do_not_depend_on_the_number_of_threads():
    problem = LinearProblem(512, 1000, torch.bfloat16)
    linear, x = _bound(problem, _weights(problem)), torch.randn(40, 512).bfloat16()
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(linear(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_cpu_without_amx_says_so():
    problem = LinearProblem(64, 64, torch.bfloat16)
    platform = detect_platform()
    if "amx_bf16" in platform.cpu_features:
        pytest.skip("this CPU has it")
    assert TILES_BACKEND.supports(problem, platform) == "for CPUs with amx_bf16"
