"""``check``: parity of every usable backend with the reference; of one of them, as a table to paste into an issue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch

from atom_kernels.cases import Operator, ParityCase, error_share, mismatch, parity_cases
from atom_kernels.cli.explain import describe_platform
from atom_kernels.operator import Op
from atom_kernels.platform import Platform


@dataclass
class _Tally:
    """The results of one backend of one operator."""

    passed: int = 0
    failed: int = 0
    worst: float = 0.0

    def __str__(self) -> str:
        failed = f"{self.failed} FAILED, " if self.failed else ""
        return f"{failed}{self.passed} passed, worst {self.worst:.0%} of allowed"


def run(
    ops: Sequence[Op | Operator], platform: Platform, *, verbose: bool = False, only_backend: str | None = None
) -> int:
    """Print a line for each backend of each operator and each failure.

    Args:
        only_backend: check no other, and say first which machine and versions this is about.

    Returns:
        0 if all agree, 1 if anything failed, or if there was nothing to check.
    """
    if only_backend is not None:
        print("\n".join([f"atom-kernels {version('atom-kernels')}", *describe_platform(platform)]) + "\n")
    failed = passed = 0
    for op in ops:
        start = time.perf_counter()
        tallies = _check(op, platform, only_backend, verbose=verbose)
        for backend, tally in tallies.items():
            print(f"{op.name:<20} {backend:<46} {tally}")
        if only_backend is not None and not tallies:
            print(f"{op.name:<20} {only_backend} runs none of its cases{_why_none(op, platform, only_backend)}")
        print(f"{'':<20} {time.perf_counter() - start:.1f} s", flush=True)
        failed += sum(tally.failed for tally in tallies.values())
        passed += sum(tally.passed for tally in tallies.values())
    if not failed and not passed:
        print("nothing was checked")
        return 1
    print(f"{failed} failures, {passed} passed" if failed else f"all {passed} agree with their references")
    return 1 if failed else 0


def _why_none(op: Op | Operator, platform: Platform, backend_name: str) -> str:
    if not isinstance(op, Op):
        return ""
    backends = [backend for backend in op.backends if backend.name == backend_name]
    if not backends:
        return ": it has no implementation"
    reasons = {backend.supports(problem, platform) for problem in op.parity_problems() for backend in backends}
    return f": {'; '.join(sorted(reason for reason in reasons if reason))}"


def _check(op: Op | Operator, platform: Platform, only_backend: str | None, *, verbose: bool) -> dict[str, _Tally]:
    tallies: dict[str, _Tally] = {}
    for case in parity_cases(op, platform, only_backend):
        tally = tallies.setdefault(case.backend, _Tally())
        problem, share = _judge(case)
        tally.failed += problem is not None
        tally.passed += problem is None
        tally.worst = max(tally.worst, share)
        if problem or verbose:
            verdict = "FAIL" if problem else "ok"
            print(f"{verdict:<5}{op.name} {case.backend}: {case.label}  {problem or ''}".rstrip())
    return tallies


def _judge(case: ParityCase) -> tuple[str | None, float]:
    """What is wrong, if anything, and the share of its tolerance that the case used."""
    with torch.inference_mode():
        try:
            actual, expected = case.run(), case.expected()
            problem = mismatch(actual, expected, case.tolerance)
            return problem, 0.0 if problem else error_share(actual, expected, case.tolerance)
        except Exception as error:  # the next case may still pass: a crash of one backend is its finding
            return f"{type(error).__name__}: {error}".splitlines()[0], 0.0
