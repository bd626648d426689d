"""Layers with fused Triton kernels, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

from interpreted_tests import needs_triton, run_in_the_interpreter


@needs_triton
def test_fused_layers_equal_unfused_ones_in_the_interpreter():
    run_in_the_interpreter(Path(__file__).parent / "triton_layers")
