"""Draws breakdowns: what each module takes of a step; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atom_server.traces.breakdown import Breakdown

_MOST_BARS = 16


def draw_breakdowns(path: Path, found: Sequence[Breakdown]) -> None:
    """A bar for each module, the longest first; one part of the picture for each phase."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1 + 4.2 * len(found)), layout="constrained")
    for number, breakdown in enumerate(found, 1):
        axes = figure.add_subplot(len(found), 1, number)
        entries = list(breakdown.modules.items())[:_MOST_BARS][::-1]
        axes.barh([name for name, _ in entries], [value / 1e3 for _, value in entries], color="#0072b2")
        axes.set(
            title=f"{breakdown.phase} step: {breakdown.step_microseconds / 1e3:.3f} ms, "
            f"{breakdown.attributed:.1%} of it in modules",
            xlabel="ms",
        )
        axes.tick_params(axis="y", labelsize=7)
    figure.savefig(path)
