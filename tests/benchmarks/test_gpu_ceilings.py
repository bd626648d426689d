"""A GPU's best is measured in a process of its own."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.ceilings import measure_ceilings


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_its_best_cannot_be_measured_and_the_reason_is_told() -> None:
    with pytest.raises(SystemExit, match="needs a GPU, and torch sees none"):
        measure_ceilings()
