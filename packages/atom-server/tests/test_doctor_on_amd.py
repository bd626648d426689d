"""`atom doctor` tells which AITER is installed, and why it does not run here."""

from __future__ import annotations

import subprocess
import sys

from emulated_aiter import emulator_environment


def test_doctor_tells_of_an_installed_aiter():
    command = [sys.executable, "-m", "atom_server", "doctor"]
    done = subprocess.run(command, env=emulator_environment("pypi"), capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert any(line.startswith("aiter ") and "the release on PyPI" in line for line in lines)
    assert any(line.startswith("no aiter: ") and "is installed)" in line for line in lines)
