"""The worker's Triton kernels in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreted_tests import needs_triton, run_in_the_interpreter


@needs_triton
def test_inputs_built_by_kernels_equal_those_of_the_host_in_the_interpreter():
    run_in_the_interpreter(Path(__file__).parent / "triton_kernels")


@needs_triton
@pytest.mark.slow
def test_slow_ones_pass_in_the_interpreter_too():
    run_in_the_interpreter(Path(__file__).parent / "triton_kernels", "-m", "slow and not gpu")
