"""What is sent, and when: asks in order, and arrivals all at once or spread at a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atom_server.bench.backends.backend import Ask


@dataclass(frozen=True)
class Workload:
    """Requests and their arrivals.

    Attributes:
        trial: goes alone before all others, to see that the server works; another prompt than those that are
            measured, since the server may remember what it has seen.
        request_rate: requests a second; infinite sends all at once.
        burstiness: 1 gives Poisson arrivals, less more bursty ones, more a more even flow (a gamma distribution).
    """

    asks: Sequence[Ask]
    trial: Ask
    request_rate: float = float("inf")
    burstiness: float = 1.0
    seed: int = 0

    def moments(self) -> Iterator[float]:
        """The second of the run at which each request is sent."""
        source, moment = random.Random(self.seed + 1), 0.0
        mean = 0.0 if self.request_rate == float("inf") else 1.0 / self.request_rate
        for _ in self.asks:
            yield moment
            moment += source.gammavariate(self.burstiness, mean / self.burstiness) if mean else 0.0
