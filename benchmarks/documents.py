"""What a benchmark's JSON says beside its results: where it was measured, by which flags, and what else ran there."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine


def document_of(
    benchmark: str,
    options: argparse.Namespace,
    settings: dict[str, Any],
    *,
    idle: float | None,
    others: Iterable[float | None],
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """The JSON of one run.

    Args:
        options: the flags, of which `--commit` is read.
        settings: what was measured (see `flags_of`).
        idle: what `machine.idle_share` said before anything was measured.
        others: what `Interference.share` says of each part of the run; the largest is kept, None where nobody knows.
    """
    known = [share for share in others if share is not None]
    return {
        "benchmark": benchmark,
        "machine": machine.describe(options.commit),
        "settings": settings,
        "idle_share_before": idle,
        "quiet": was_idle(idle),
        "share_used_by_others": max(known, default=None),
        "results": results,
    }


def was_idle(idle: float | None) -> bool:
    """Whether the machine was idle enough for timings to mean something; True where the system does not say."""
    return idle is None or idle >= machine.QUIET_IDLE_SHARE


def flags_of(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags of these names. A model is named by the last part of its path, which all machines share."""
    flags = {name: getattr(options, name) for name in names}
    return flags | {"model": Path(flags["model"]).name} if "model" in flags else flags
