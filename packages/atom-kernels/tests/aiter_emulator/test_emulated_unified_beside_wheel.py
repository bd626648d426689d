"""Unified attention beside AITER's own Triton kernel, of the wheel on PyPI, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_wheel import aiter_wheel
from emulated_aiter import ROOT

SCRIPT = Path(__file__).parent / "interpreted_unified.py"


@pytest.mark.network
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_of_the_wheel_gives_the_same_numbers():
    paths = [str(ROOT), str(ROOT / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRITON_INTERPRET": "1",
        "GPU_ARCHS": "gfx942",
    }
    command = [sys.executable, str(SCRIPT), str(aiter_wheel().file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "6 cases are alike" in done.stdout, done.stderr[-2000:]
