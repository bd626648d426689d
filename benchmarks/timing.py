"""Interleaved timing: two sides take turns, so that what the machine does to one it does to the other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Step = Callable[[], object]
# (warm-up steps, timed steps) -> seconds of each timed step
Turn = Callable[[int, int], list[float]]


@dataclass
class Timings:
    """Seconds of single steps, in the turns in which they were taken."""

    turns: list[list[float]] = field(default_factory=list)

    @property
    def steps(self) -> list[float]:
        return [step for turn in self.turns for step in turn]

    @property
    def median(self) -> float:
        return statistics.median(self.steps)

    def summary(self) -> dict[str, Any]:
        """Milliseconds: median, quartiles, extremes and the count."""
        steps = sorted(1e3 * step for step in self.steps)
        low, _, high = statistics.quantiles(steps, n=4) if len(steps) > 1 else (steps[0],) * 3
        return {
            "median_ms": round(statistics.median(steps), 3),
            "quartiles_ms": [round(low, 3), round(high, 3)],
            "range_ms": [round(steps[0], 3), round(steps[-1], 3)],
            "num_steps": len(steps),
        }


def take_turn(step: Step, warm_up: int, steps: int) -> list[float]:
    """Seconds of each of `steps` calls, after `warm_up` untimed ones."""
    for _ in range(warm_up):
        step()
    return [_seconds(step) for _ in range(steps)]


def interleave(sides: Mapping[str, Turn], *, turns: int, steps: int, warm_up: int = 2) -> dict[str, Timings]:
    """Let the sides take turns of `steps` timed steps each: A B A B ... A.

    Every side gets `turns` turns, and the first side one more: it encloses the others, and a drift of the
    machine shows as a difference between its first and last turn.
    """
    timings = {name: Timings() for name in sides}
    order = [name for _ in range(turns) for name in sides]
    for name in [*order, next(iter(sides))]:
        timings[name].turns.append(sides[name](warm_up, steps))
    return timings


def ratios(ours: Timings, peer: Timings) -> dict[str, float]:
    """How many times faster ours is: by the medians of all steps, and the extremes over neighboring turns."""
    pairs = [
        statistics.median(theirs) / statistics.median(mine)
        for mine, theirs in zip(ours.turns, peer.turns, strict=False)
    ]
    return {
        "median": round(peer.median / ours.median, 3),
        "lowest_turn": round(min(pairs), 3),
        "highest_turn": round(max(pairs), 3),
    }


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
