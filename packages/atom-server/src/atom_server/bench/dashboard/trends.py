"""What became faster or slower from one run to the next of the same load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from atom_server.bench.dashboard.runs import Run

LEAST_THROUGHPUT, MOST_LATENCY = -0.05, 0.10


@dataclass(frozen=True)
class Change:
    """A run beside the one before it; shares are None for the first of a trend."""

    run: Run
    throughput: float | None = None
    ttft: float | None = None
    tpot: float | None = None

    @property
    def regressions(self) -> list[str]:
        """The metrics that became worse by more than is allowed."""
        found = ["throughput"] if self.throughput is not None and self.throughput <= LEAST_THROUGHPUT else []
        latencies = {"ttft": self.ttft, "tpot": self.tpot}
        return found + [name for name, share in latencies.items() if share is not None and share >= MOST_LATENCY]


def trends(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Change]]:
    """The runs of each subject in order of time, each beside the one before."""
    subjects: defaultdict[tuple[str, str, str], list[Change]] = defaultdict(list)
    for run in runs:
        before = subjects[run.subject][-1].run if subjects[run.subject] else None
        shares = () if before is None else (_share(run, before, name) for name in ("throughput", "ttft", "tpot"))
        subjects[run.subject].append(Change(run, *shares))
    return dict(subjects)


def _share(run: Run, before: Run, name: str) -> float | None:
    old, new = getattr(before, name), getattr(run, name)
    return new / old - 1 if old else None
