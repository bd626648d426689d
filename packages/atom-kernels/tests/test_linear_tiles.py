"""The linear in AMX tiles, on any CPU: without AMX, tiles are imitated in C."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.native import NATIVE_BACKEND
from atom_kernels.linear.native_tiles import TILES_BACKEND, TILES_F32_BACKEND
from atom_kernels.native import native_unavailable
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with, select

pytestmark = pytest.mark.skipif(native_unavailable("linear_tiles") is not None, reason="no C compiler")
_BACKENDS = {None: TILES_BACKEND, torch.float32: TILES_F32_BACKEND}
to_each_dtype = pytest.mark.parametrize("out_dtype", _BACKENDS, ids=["to bfloat16", "to float32"])


def _bound(problem, weights):
    wanted = _BACKENDS[problem.out_dtype].implementation
    [backend] = [one for one in LINEAR.backends if one.implementation == wanted]
    return plan_with(LINEAR, problem, backend).prepare(weights)


def _weights(problem):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(problem.out_features, problem.in_features, generator=generator).bfloat16()
    bias = torch.randn(problem.out_features, generator=generator).bfloat16() if problem.bias else None
    return {"weight": weight, "bias": bias}


@to_each_dtype
@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 31, 32, 33, 70, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (64, 40), (1056, 65), (544, 32), (1056, 250)])
def test_tiles_give_the_products_rounded_once(num_rows, inputs, outputs, out_dtype):
    problem = LinearProblem(inputs, outputs, torch.bfloat16, bias=outputs % 2 == 0, out_dtype=out_dtype)
    weights = _weights(problem)
    x = torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = 0 if weights["bias"] is None else weights["bias"].double()
    exact = x.double() @ weights["weight"].double().T + bias
    found = _bound(problem, weights)(x)
    assert found.dtype == problem.result_dtype
    # Half a unit in the last of 8 places, and what float32 sums are off by.
    rounding = 0 if out_dtype else 2**-8
    assert torch.all((found.double() - exact).abs() <= exact.abs() * rounding + 2e-4)


@to_each_dtype
def test_a_row_has_the_same_bits_beside_any_number_of_others(out_dtype):
    problem = LinearProblem(1056, 65, torch.bfloat16, bias=True, out_dtype=out_dtype)
    linear = _bound(problem, _weights(problem))
    x = torch.randn(70, 1056).bfloat16()
    alone = torch.cat([linear(row) for row in x.split(1)])
    for num_rows in (*range(2, 41), 70):
        assert torch.equal(linear(x[:num_rows]), alone[:num_rows])


@to_each_dtype
def test_results_do_not_depend_on_the_number_of_threads(out_dtype):
    problem = LinearProblem(512, 1000, torch.bfloat16, out_dtype=out_dtype)
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


def test_a_weight_whose_results_are_float32_stays_as_loaded_since_embeddings_may_be_looked_up_in_it():
    problem = LinearProblem(64, 40, torch.bfloat16, out_dtype=torch.float32)
    weights = _weights(problem)
    linear, x = _bound(problem, weights), torch.ones(3, 64, dtype=torch.bfloat16)
    weights["weight"].fill_(2)
    assert torch.equal(linear(x), torch.full((3, 40), 128.0))


@to_each_dtype
def test_weights_may_lie_by_columns(out_dtype):
    problem = LinearProblem(64, 40, torch.bfloat16, out_dtype=out_dtype)
    weight = _weights(problem)["weight"]
    by_columns = _bound(problem, {"weight": weight.t().contiguous().t(), "bias": None})
    other = torch.randn(40, 64).bfloat16()  # gets the memory of a copy that nobody keeps
    x = torch.randn(3, 64).bfloat16()
    assert torch.equal(by_columns(x), _bound(problem, {"weight": weight, "bias": None})(x))
    assert other.isfinite().all()


def _before_a_page_that_nobody_may_read(tensor):
    """A copy whose last byte is the last of a page."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page = torch.frombuffer(memory, dtype=tensor.dtype)[: mmap.PAGESIZE // tensor.itemsize]
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(page.data_ptr() + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return page[-tensor.numel() :].copy_(tensor.flatten()).view(tensor.shape)


@pytest.mark.parametrize("outputs", [16, 17])
def test_nothing_behind_a_weight_or_its_rows_is_read_since_a_checkpoint_may_end_there(outputs):
    problem = LinearProblem(32, outputs, torch.bfloat16, bias=True, out_dtype=torch.float32)
    weights, x = _weights(problem), torch.randn(5, 32).bfloat16()
    at_end = {name: _before_a_page_that_nobody_may_read(one) for name, one in weights.items()}
    found = _bound(problem, at_end)(_before_a_page_that_nobody_may_read(x))
    assert torch.equal(found, _bound(problem, weights)(x))


@pytest.mark.parametrize(("inputs", "backend"), [(64, TILES_F32_BACKEND), (40, NATIVE_BACKEND)])
def test_with_amx_float32_results_come_from_tiles_where_these_take_the_inputs(inputs, backend):
    if "amx_bf16" not in detect_platform().cpu_features:
        pytest.skip("this CPU has no AMX")
    plan = select(LINEAR, LinearProblem(inputs, 40, torch.bfloat16, out_dtype=torch.float32))
    assert [row.implementation for row in plan.rows] == [backend.implementation]
