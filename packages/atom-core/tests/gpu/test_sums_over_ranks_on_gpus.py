"""Sums over ranks by our kernels, on GPUs: ranks are processes that judge what they get by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atom_core.settings import rank_environment

_RANK = Path(__file__).parents[4] / "tests/support/summing_rank.py"


def run_ranks(folder: Path, size: int, num_gpus: int) -> None:
    """Ends when all ranks have; the first that fails, or that cannot share memory, decides."""
    allowed = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"} if num_gpus == 1 else {}
    environment = rank_environment(1) | allowed
    command = [sys.executable, str(_RANK), str(folder / "store"), str(size)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(num_gpus)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    codes = [rank.returncode for rank in ranks]
    if set(codes) == {3}:
        message = outputs[0].strip().splitlines()[-1]
        if num_gpus == 1:
            pytest.skip(message)
        pytest.fail(message)
    assert codes == [0] * size, "\n".join(output[-2000:] for output in outputs)


@pytest.mark.multi_gpu
def test_two_gpus_sum_exactly_with_norms_and_in_graphs(tmp_path: Path) -> None:
    run_ranks(tmp_path, 2, 2)


@pytest.mark.gpu
def test_two_processes_on_one_gpu_sum_exactly_with_norms_and_in_graphs(tmp_path: Path) -> None:
    run_ranks(tmp_path, 2, 1)
