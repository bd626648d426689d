"""A step's inputs in Triton are those of the contract."""

from __future__ import annotations

import inspect

import pytest

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.platform import detect_platform
from atom_kernels.step_inputs import BUILD_STEP_INPUTS, WRITE_TABLES
from atom_kernels.step_inputs.triton_kernels import build_inputs_kernel, write_words_kernel


@pytest.mark.parametrize("op", [WRITE_TABLES, BUILD_STEP_INPUTS], ids=lambda op: op.name)
def test_odd_batches_are_written_as_by_the_contract(op):
    count = 0
    for case in parity_cases(op, detect_platform(), "triton"):
        if not case.label.endswith(("rows=17", "rows=67")):  # these take long in the interpreter
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count == 3 * len(op.parity_problems())


@pytest.mark.parametrize("kernel", [write_words_kernel, build_inputs_kernel])
def test_no_layer_starts_before_the_inputs_are_built(kernel) -> None:
    """Layers read lengths, tables, slots and positions without waiting; see `atom_kernels.triton.support`."""
    assert "DEPENDENT" not in inspect.signature(kernel.fn).parameters
