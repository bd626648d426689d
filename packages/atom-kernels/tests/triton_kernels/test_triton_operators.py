"""Norms and activations in Triton agree with their references."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.activation import UNGATED, Activation, ActivationProblem, GatedActivationProblem
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.norm import LayerNormProblem, RMSNormProblem
from atom_kernels.platform import detect_platform
from atom_kernels.registry import all_ops
from atom_kernels.select import select

NAMES = ("rms_norm", "add_rms_norm", "layer_norm", "activation", "gated_activation")
# Their gates are parts of wider rows.
GATED = ("gated_rms_norm", "sigmoid_gate")
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


@pytest.mark.parametrize("name", NAMES + GATED)
def test_odd_shapes_in_every_dtype_agree_with_the_reference(name):
    count = 0
    for case in parity_cases(all_ops()[name], detect_platform()):
        if case.backend.startswith("triton") and not case.label.endswith(("rows=17", "rows=67")):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count > 30


@pytest.mark.parametrize("name", NAMES + GATED)
def test_no_rows_and_strided_rows_are_served(name):
    op = all_ops()[name]
    problem = op.parity_problems()[6]
    plan = select(op, problem, only_backend="triton")
    weights, inputs = op.make_inputs(problem, 4, torch.Generator().manual_seed(0))
    device = detect_platform().device
    kernel = plan.prepare({key: weight.to(device) for key, weight in weights.items()})
    strided = tuple(torch.cat((x, x), dim=1).to(device)[:, : x.shape[1]] for x in inputs)
    expected = op.reference(problem, weights, *inputs)
    assert mismatch(kernel(*strided), expected, op.tolerance(problem)) is None
    empty = kernel(*(x[:0] for x in strided))
    assert (empty[0] if isinstance(empty, tuple) else empty).shape[0] == 0


def problems_on_a_gpu(name, size):
    """Those of an operator over rows of a size, in bfloat16."""
    if name == "layer_norm":
        return [LayerNormProblem(size, torch.bfloat16, bias=bias) for bias in (True, False)]
    if "norm" in name:
        return [RMSNormProblem(size, torch.bfloat16)]
    if name == "activation":
        return [ActivationProblem(size, torch.bfloat16, activation) for activation in UNGATED]
    return [GatedActivationProblem(size, torch.bfloat16, activation) for activation in Activation]


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 33, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_real_models_agree_on_a_gpu(name, num_rows):
    op = all_ops()[name]
    for problem in (problem for size in (1024, 2880, 3072, 12288) for problem in problems_on_a_gpu(name, size)):
        weights, inputs = op.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
        weights, inputs = {key: x.cuda() for key, x in weights.items()}, tuple(x.cuda() for x in inputs)
        got = select(op, problem, only_backend="triton").prepare(weights)(*inputs)
        problem_found = mismatch(got, op.reference(problem, weights, *inputs), op.tolerance(problem))
        assert problem_found is None, f"{problem}: {problem_found}"
