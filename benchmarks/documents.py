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
    """The whole JSON.

    Args:
        options: the flags, of which `--commit` is read.
        settings: what was measured (see `flags_of`).
        idle: from `machine.idle_share`, before anything was measured.
        others: from `Interference.share`, over each part of what was measured; the most counts.
    """
    return {
        "benchmark": benchmark,
        "machine": machine.describe(options.commit),
        "settings": settings,
        "idle_share_before": idle,
        "quiet": was_idle(idle),
        "share_used_by_others": max((share or 0.0 for share in others), default=0.0),
        "results": results,
    }


def was_idle(idle: float | None) -> bool:
    """Whether so large a share of the cores' time was idle that timings mean something; yes where nobody knows."""
    return idle is None or idle >= machine.QUIET_IDLE_SHARE


def flags_of(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags of these names; of `--model` the last part, which is the same on every machine."""
    flags = {name: getattr(options, name) for name in names}
    return flags | {"model": Path(flags["model"]).name} if "model" in flags else flags
