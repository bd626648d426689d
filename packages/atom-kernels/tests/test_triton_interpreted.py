"""The Triton kernels in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

from interpreted_tests import needs_triton, run_in_the_interpreter


@needs_triton
def test_the_triton_kernels_equal_their_references_in_the_interpreter():
    run_in_the_interpreter(Path(__file__).parent / "triton_kernels")
