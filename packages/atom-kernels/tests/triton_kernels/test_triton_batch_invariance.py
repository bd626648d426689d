"""Linears that give a row the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.cases import mismatch
from atom_kernels.formats import Float8, Integers, Mxfp4, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.batch_invariant import BATCH_INVARIANT_BACKEND
from atom_kernels.linear.packed_invariant import PACKED_BATCH_INVARIANT_BACKEND
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Facts, detect_platform, platform_from_facts
from atom_kernels.select import plan_with, select

HERE = detect_platform()
H100 = platform_from_facts(
    Facts(torch_build="cuda", num_devices=1, device_name="H100", device_arch="sm_90", triton_version="3.6.0")
)


FORMATS = {
    "fp8": (Float8(), Float8()),
    "fp8 blocks": (Float8(128, 128), Float8(1, 128)),
    "int8": (Integers(8), None),
    "int4": (Integers(4, 128), None),
    "int4 with zero points": (Integers(4, 32, Offset.ZERO_POINT, torch.float16), None),
    "mxfp4": (Mxfp4(), None),
}


def test_on_request_linears_of_a_gpu_have_one_kernel_for_all_rows_and_leave_their_neighbors_alone():
    invariant = replace(H100, batch_invariant=True)
    problem = LinearProblem(64, 64, torch.bfloat16)
    name = BATCH_INVARIANT_BACKEND.implementation
    assert [row.implementation for row in select(LINEAR, problem, invariant).rows] == [name]
    assert name not in [row.implementation for row in select(LINEAR, problem, H100).rows]
    assert [select(LINEAR, problem, platform).takes_neighbors for platform in (invariant, H100)] == [False, True]


def test_odd_shapes_in_every_dtype_agree_with_the_reference():
    for problem in LINEAR.parity_problems():
        if not problem.is_plain or not problem.is_alone or problem.in_features > 2000:
            continue
        kernel = plan_with(LINEAR, problem, BATCH_INVARIANT_BACKEND)
        for num_rows in (1, 19):
            weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
            here = {name: None if tensor is None else tensor.to(HERE.device) for name, tensor in weights.items()}
            got = kernel.prepare(here)(*(tensor.to(HERE.device) for tensor in inputs))
            found = mismatch(got, LINEAR.reference(problem, weights, *inputs), LINEAR.tolerance(problem))
            assert found is None, f"{problem}, {num_rows} rows: {found}"


def test_no_rows_give_none():
    kernel = plan_with(LINEAR, LinearProblem(8, 4, torch.float32), BATCH_INVARIANT_BACKEND)
    weight = torch.ones(4, 8, device=HERE.device)
    assert kernel.prepare({"weight": weight})(weight[:0]).shape == (0, 4)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_have_one_kernel_for_all_rows_too(name):
    weights, inputs = FORMATS[name]
    problem = LinearProblem(256, 128, torch.bfloat16, weight_format=weights, input_format=inputs)
    invariant = replace(H100, batch_invariant=True)
    only = [PACKED_BATCH_INVARIANT_BACKEND.implementation]
    assert [row.implementation for row in select(LINEAR, problem, invariant).rows] == only
    assert only[0] not in [row.implementation for row in select(LINEAR, problem, H100).rows]
    assert not select(LINEAR, problem, invariant).takes_neighbors


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_in_tiles_of_any_height_agree_with_the_reference(name, dtype):
    weight_format, _ = FORMATS[name]
    problem = LinearProblem(320, 40, dtype, bias=True, weight_format=weight_format)
    kernel = plan_with(LINEAR, problem, PACKED_BATCH_INVARIANT_BACKEND)
    for num_rows in (1, 19, 40, 70):
        weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
        here = {key: None if tensor is None else tensor.to(HERE.device) for key, tensor in weights.items()}
        got = kernel.prepare(here)(*(tensor.to(HERE.device) for tensor in inputs))
        found = mismatch(got, LINEAR.reference(problem, weights, *inputs), Tolerance(3e-2, 2e-2))
        assert found is None, f"{num_rows} rows: {found}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_any_batch_of_packed_weights(name):
    torch.manual_seed(0)
    weight_format, input_format = FORMATS[name]
    problem = LinearProblem(1024, 1536, torch.bfloat16, weight_format=weight_format, input_format=input_format)
    weights = weight_format.quantize(torch.randn(1536, 1024, device="cuda") * 0.02)
    kernel = plan_with(LINEAR, problem, PACKED_BATCH_INVARIANT_BACKEND).prepare(weights)
    x = torch.randn(700, 1024, device="cuda").to(torch.bfloat16)
    whole = kernel(x)
    for num_rows in (1, 2, 16, 17, 32, 33, 64, 65, 128, 129, 500):
        assert torch.equal(kernel(x[:num_rows]), whole[:num_rows]), num_rows
        assert torch.equal(kernel(x[-num_rows:]), whole[-num_rows:]), num_rows


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("inputs", "outputs"), [(1024, 4096), (2880, 5120), (1000, 777)])
def test_a_row_has_the_same_bits_in_any_batch(inputs, outputs, dtype):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device="cuda").to(dtype)
    kernel = plan_with(LINEAR, LinearProblem(inputs, outputs, dtype), BATCH_INVARIANT_BACKEND).prepare(
        {"weight": weight}
    )
    x = torch.randn(700, inputs, device="cuda").to(dtype)
    whole = kernel(x)
    for num_rows in (1, 2, 16, 17, 32, 33, 64, 65, 128, 129, 500):
        assert torch.equal(kernel(x[:num_rows]), whole[:num_rows]), num_rows
        assert torch.equal(kernel(x[-num_rows:]), whole[-num_rows:]), num_rows
