"""Runs a script with two threads on two cores that other programs keep busy."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

_BEFORE = """
import os, subprocess, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import torch
torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)  # OpenMP is running before any of our code
from atom_kernels.host_threads.waiting import wait_policy
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
deadline = time.monotonic() + 60
def is_undecided():
    return not wait_policy().spins_briefly and time.monotonic() < deadline
"""
_AFTER = """
print("asleep" if wait_policy().spins_briefly else "spinning")
for other in others:
    other.kill()
    other.wait()
"""


def waiting_after(code: str) -> str:
    """ "asleep" or "spinning": how OpenMP threads wait after `code`, which computes while ``is_undecided()``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + textwrap.dedent(code) + _AFTER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
