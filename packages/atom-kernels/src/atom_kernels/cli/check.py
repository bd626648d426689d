"""``check``: parity of every usable backend with the reference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import torch

from atom_kernels.cases import Operator, ParityCase, mismatch, parity_cases
from atom_kernels.operator import Op
from atom_kernels.platform import Platform


def run(ops: Sequence[Op | Operator], platform: Platform, *, verbose: bool = False) -> int:
    """Print a line for each backend of each operator and each failure; 1 if anything failed."""
    failures = 0
    for op in ops:
        passed: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        start = time.perf_counter()
        for case in parity_cases(op, platform):
            problem = _failure_of(case)
            (failed if problem else passed)[case.backend] += 1
            if problem or verbose:
                verdict = "FAIL" if problem else "ok"
                print(f"{verdict:<5}{op.name} {case.backend}: {case.label}  {problem or ''}".rstrip())
        for backend in passed | failed:
            verdict = f"{failed[backend]} FAILED, " if failed[backend] else ""
            print(f"{op.name:<20} {backend:<40} {verdict}{passed[backend]} passed")
        print(f"{'':<20} {time.perf_counter() - start:.1f} s")
        failures += failed.total()
    print(f"{failures} failures" if failures else "all agree with their references")
    return 1 if failures else 0


def _failure_of(case: ParityCase) -> str | None:
    with torch.inference_mode():
        try:
            return mismatch(case.run(), case.expected(), case.tolerance)
        except Exception as error:  # the next case may still pass: a crash of one backend is its finding
            return f"{type(error).__name__}: {error}".splitlines()[0]
