"""A graph may hold what AITER's adapters do: nothing is read on the host, and no call depends on a value.

Each adapter runs twice on the same buffers, over other contents the second time, with everything forbidden that a
graph could not keep. The calls of AITER must be the same, and the second result that of a kernel bound afresh.
"""

from __future__ import annotations

import pytest
import torch

from aiter_calls import NotCapturableError, only_what_graphs_hold, recorded_calls
from amd_machine import amd_machine
from atom_kernels.cases import mismatch
from atom_kernels.operator import Op, Tolerance
from atom_kernels.platform import Platform
from atom_kernels.registry import all_ops
from atom_kernels.select import plan_with

EXACT = Tolerance(0.0, 0.0)
# Odd, so that experts are given a base.
NUM_ROWS = 7
# Adapter -> names that it may use nevertheless, with the reason.
ALLOWED: dict[str, tuple[frozenset[str], str]] = {}


def cases():
    """Every adapter of an operator on up to two problems that it supports."""
    platform = Platform.rocm("gfx942", device="cpu")
    for name, op in all_ops().items():
        for backend in op.backends if isinstance(op, Op) else ():
            if backend.name == "aiter":
                problems = [*op.parity_problems(), *op.examples()]
                supported = [problem for problem in problems if backend.supports(problem, platform) is None]
                for index, problem in enumerate(supported[:2]):
                    yield pytest.param(op, backend, problem, id=f"{name}-{backend.implementation}-{index}")


@pytest.mark.parametrize(("op", "backend", "problem"), list(cases()))
def test_an_adapter_may_be_captured(op, backend, problem):
    allowed, _ = ALLOWED.get(backend.implementation, (frozenset(), ""))
    weights, inputs = op.make_inputs(problem, NUM_ROWS, torch.Generator().manual_seed(0))
    _, others = op.make_inputs(problem, NUM_ROWS, torch.Generator().manual_seed(1))
    with amd_machine(), recorded_calls() as calls, torch.inference_mode():
        buffers = tuple(clone(given) for given in inputs)
        plan = plan_with(op, problem, backend)
        kernel, fresh = plan.prepare(weights), plan.prepare(weights)
        calls.clear()
        with only_what_graphs_hold(allowed):
            kernel(*buffers)
        first = list(calls)
        for buffer, other in zip(buffers, others, strict=True):
            if isinstance(buffer, torch.Tensor):
                buffer.copy_(other)
        calls.clear()
        with only_what_graphs_hold(allowed):
            second = kernel(*buffers)
        assert list(calls) == first != []
        expected = fresh(*(clone(other) for other in others))
    assert mismatch(second, expected, EXACT) is None


def clone(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x[0] > 0),
        lambda x: int(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.new_tensor([1.0]),
        lambda x: range(x.long()[0]),
    ],
)
def test_the_guard_sees_what_a_graph_cannot_hold(read):
    x = torch.ones(3)
    read(x)
    with pytest.raises(NotCapturableError), only_what_graphs_hold():
        read(x)


def test_the_guard_lets_pass_what_a_graph_holds():
    x, ids = torch.ones(3, 4), torch.zeros(2, dtype=torch.int64)
    with only_what_graphs_hold():
        y = torch.empty_like(x).copy_(x).masked_fill_(x > 2, 0.0)
        assert (y[ids] + torch.arange(4)).shape == (2, 4)
