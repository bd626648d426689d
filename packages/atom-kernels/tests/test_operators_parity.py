"""Every backend that runs here agrees with its reference, and every operator has what a kernel developer needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.cases import bench_cases, explain, mismatch, parity_cases
from atom_kernels.operator import Backend, Op, Tolerance
from atom_kernels.platform import detect_platform
from atom_kernels.registry import all_ops
from atom_kernels.select import select

OPS = all_ops()


@pytest.mark.parametrize("name", OPS)
def test_every_usable_backend_agrees_with_the_reference(name):
    count = 0
    with torch.inference_mode():
        for case in parity_cases(OPS[name], detect_platform()):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.backend} on {case.label}: {problem}"
            count += 1
    assert count > 0


@pytest.mark.parametrize("name", OPS)
def test_every_operator_has_a_documented_contract_and_explains_itself(name):
    op = OPS[name]
    assert op.contract.__doc__
    assert callable(op.reference)
    assert explain(op, detect_platform())


@pytest.mark.parametrize("name", OPS)
def test_every_operator_can_be_measured(name):
    case = next(iter(bench_cases(OPS[name], detect_platform())))
    assert case.work.num_bytes > 0


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if isinstance(op, Op)])
def test_every_opaque_op_agrees_with_its_fake(name):
    op = OPS[name]
    problems = op.parity_problems()
    for problem in (*problems[:2], problems[-1]):
        weights, inputs = op.make_inputs(problem, 5, torch.Generator().manual_seed(0))
        bound = select(op, problem).prepare(weights)
        torch.library.opcheck(bound.opaque_op, (bound.handle, *inputs), test_utils=("test_schema", "test_faketensor"))


def test_a_backend_that_writes_the_wrong_thing_in_place_is_found():
    backend = Backend(
        name="torch",
        implementation="bans everything",
        supports=lambda problem, platform: None,
        bind=lambda problem, weights: lambda logits, words: logits.fill_(float("-inf")),
    )
    case = next(iter(parity_cases(replace(OPS["ban_tokens"], backends=(backend,)), detect_platform())))
    assert mismatch(case.run(), case.expected(), case.tolerance) is not None


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (torch.tensor([1.0, float("nan")]), "off by"),
        (torch.tensor([1.0, 2.5]), "off by up to 0.5"),
        (torch.tensor([1.0]), "expected"),
        (torch.tensor([1.0, 2.0]).double(), "float64"),
        ((torch.ones(2), torch.ones(2)), "2 outputs"),
    ],
)
def test_a_mismatch_is_found_and_said(actual, words):
    assert words in mismatch(actual, torch.tensor([1.0, 2.0]), Tolerance(0.1, 0.0))


def test_infinities_agree_with_their_like_alone():
    infinite = torch.tensor([float("-inf"), 1.0])
    assert mismatch(infinite, infinite.clone(), Tolerance(0, 0)) is None
    assert mismatch(torch.tensor([0.0, 1.0]), infinite, Tolerance(0.1, 0.1)) is not None
    assert mismatch(infinite, torch.tensor([0.0, 1.0]), Tolerance(0.1, 0.1)) is not None


def test_equal_results_are_no_mismatch():
    assert mismatch(torch.tensor([1.0, 2.05]), torch.tensor([1.0, 2.0]), Tolerance(0.1, 0.0)) is None
