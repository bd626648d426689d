"""Links between devices, and how long exchanges over them take."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What joins each device to the others.

    Attributes:
        bytes_per_second: that a device sends while it receives as many, as printed; over all of its links.
        share: how much of that large exchanges reach.
        latency: seconds of the smallest sum over two ranks.
        latency_of_doubling: seconds that twice as many ranks add.
        peers: how many others each device has a link of its own to: it sends to fewer over fewer. None behind
            switches, where two ranks have all bytes.
        source: where the numbers come from.
    """

    bytes_per_second: float
    share: float
    latency: float
    latency_of_doubling: float
    source: str
    peers: int | None = None

    def rate(self, num_ranks: int) -> float:
        """Bytes a second that a device sends to `num_ranks - 1` others."""
        used = 1.0 if self.peers is None else min(1.0, (num_ranks - 1) / self.peers)
        return self.bytes_per_second * self.share * used

    def start(self, num_ranks: int) -> float:
        """Seconds of an exchange of nearly nothing."""
        return self.latency + self.latency_of_doubling * math.log2(num_ranks / 2)

    def sum_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """A sum over ranks of `num_bytes` on each: all is sent to everyone at once, or parts in two rounds."""
        if num_ranks == 1:
            return 0.0
        start, rate = self.start(num_ranks), self.rate(num_ranks)
        at_once = start + (num_ranks - 1) * num_bytes / rate
        in_parts = 2 * start + 2 * num_bytes * (num_ranks - 1) / num_ranks / rate
        return min(at_once, in_parts)

    def gather_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Every rank gets `num_bytes` in all, of which it has its share; a reduce-scatter takes as long."""
        if num_ranks == 1:
            return 0.0
        return self.start(num_ranks) + num_bytes * (num_ranks - 1) / num_ranks / self.rate(num_ranks)


@dataclass(frozen=True)
class Links:
    """Links of the ranks that exchange: `inside` nodes of `node_size`, and `between` nodes."""

    inside: Link
    between: Link | None
    node_size: int

    def sum_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """A sum over ranks: inside nodes, of the nodes' shares between them, and inside nodes again."""
        inner = min(num_ranks, self.node_size)
        num_nodes = -(-num_ranks // self.node_size)
        if num_nodes == 1:
            return self.inside.sum_seconds(num_bytes, inner)
        scattered = 2 * self.inside.gather_seconds(num_bytes, inner)
        return scattered + self._between.sum_seconds(num_bytes / inner, num_nodes)

    def gather_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Every rank gets `num_bytes` in all."""
        inner = min(num_ranks, self.node_size)
        num_nodes = -(-num_ranks // self.node_size)
        seconds = self.inside.gather_seconds(num_bytes, inner)
        return seconds if num_nodes == 1 else seconds + self._between.gather_seconds(num_bytes / inner, num_nodes)

    def stage_seconds(self, num_bytes: float, num_ranks: int, num_stages: int) -> float:
        """`num_bytes` of each rank go through all stages, of `num_ranks` each, side by side in nodes."""
        between = min(num_stages, -(-num_ranks * num_stages // self.node_size)) - 1
        inside = self.inside.start(2) + num_bytes / self.inside.rate(2)
        if between == 0:
            return (num_stages - 1) * inside
        across = self._between.start(2) + num_bytes / self._between.rate(2)
        return (num_stages - 1 - between) * inside + between * across

    @property
    def _between(self) -> Link:
        if self.between is None:
            raise ValueError(f"nodes of {self.node_size} devices have no links between them")
        return self.between
