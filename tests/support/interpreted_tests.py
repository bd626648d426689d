"""Runs tests of Triton kernels in Triton's interpreter: in a process of their own, since Triton decides at import."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def run_in_the_interpreter(folder: Path, *flags: str) -> None:
    """Run the tests in a folder; all must pass."""
    quietly = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *quietly, *flags, str(folder)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
