"""Linears that give a row the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.cases import mismatch
from atom_kernels.linear import FUSED_LINEAR, OP, FusedLinearProblem, LinearProblem
from atom_kernels.linear.batch_invariant import BATCH_INVARIANT_BACKEND
from atom_kernels.platform import Facts, detect_platform, platform_from_facts
from atom_kernels.select import plan_with, select

HERE = detect_platform()
H100 = platform_from_facts(
    Facts(torch_build="cuda", num_devices=1, device_name="H100", device_arch="sm_90", triton_version="3.6.0")
)


def test_on_request_linears_of_a_gpu_have_one_kernel_for_all_rows_and_leave_their_neighbors_alone():
    invariant = replace(H100, batch_invariant=True)
    problem, fused = LinearProblem(64, 64, torch.bfloat16), FusedLinearProblem(64, 64, torch.bfloat16)
    name = BATCH_INVARIANT_BACKEND.implementation
    assert [row.implementation for row in select(OP, problem, invariant).rows] == [name]
    assert name not in [row.implementation for row in select(OP, problem, H100).rows]
    assert [row.backend for row in select(FUSED_LINEAR, fused, invariant).rows] == ["torch"]


def test_odd_shapes_in_every_dtype_agree_with_the_reference():
    for problem in OP.parity_problems():
        if problem.weight_format is not None:
            continue
        if problem.in_features > 2000:
            continue
        kernel = plan_with(OP, problem, BATCH_INVARIANT_BACKEND)
        for num_rows in (1, 19):
            weights, inputs = OP.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
            here = {name: None if tensor is None else tensor.to(HERE.device) for name, tensor in weights.items()}
            got = kernel.prepare(here)(*(tensor.to(HERE.device) for tensor in inputs))
            found = mismatch(got, OP.reference(problem, weights, *inputs), OP.tolerance(problem))
            assert found is None, f"{problem}, {num_rows} rows: {found}"


def test_no_rows_give_none():
    kernel = plan_with(OP, LinearProblem(8, 4, torch.float32), BATCH_INVARIANT_BACKEND)
    weight = torch.ones(4, 8, device=HERE.device)
    assert kernel.prepare({"weight": weight})(weight[:0]).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("inputs", "outputs"), [(1024, 4096), (2880, 5120), (1000, 777)])
def test_a_row_has_the_same_bits_in_any_batch(inputs, outputs, dtype):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device="cuda").to(dtype)
    kernel = plan_with(OP, LinearProblem(inputs, outputs, dtype), BATCH_INVARIANT_BACKEND).prepare({"weight": weight})
    x = torch.randn(700, inputs, device="cuda").to(dtype)
    whole = kernel(x)
    for num_rows in (1, 2, 16, 17, 32, 33, 64, 65, 128, 129, 500):
        assert torch.equal(kernel(x[:num_rows]), whole[:num_rows]), num_rows
        assert torch.equal(kernel(x[-num_rows:]), whole[-num_rows:]), num_rows
