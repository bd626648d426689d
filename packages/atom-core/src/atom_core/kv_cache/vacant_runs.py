"""`VacantRuns`: empty blocks kept as runs of adjacent ids, so that requests get few and long runs."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class VacantRuns:
    """Maximal runs ``[start, end)`` of empty block ids; starts with all of ``[0, num_blocks)``.

    `len()` counts blocks, not runs. Adding merges with both neighbors; the longest run is found through a heap whose
    outdated entries are skipped.
    """

    def __init__(self, num_blocks: int) -> None:
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        self._num_blocks = 0
        self.add(0, num_blocks)

    def __len__(self) -> int:
        return self._num_blocks

    def add(self, start: int, end: int) -> None:
        """Blocks ``[start, end)``, none of them here yet, have become empty."""
        self._num_blocks += end - start
        start = self._start_of.pop(start, start)
        end = self._end_of.pop(end, end)
        self._insert(start, end)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """The run that ``[start, end)`` would be part of if these blocks were empty."""
        return self._start_of.get(start, start), self._end_of.get(end, end)

    def longest(self) -> tuple[int, int]:
        """``(start, end)`` of the longest run, the lowest of several; there must be one."""
        while True:
            negative_length, start = self._by_length[0]
            if self._end_of.get(start) == start - negative_length:
                return start, start - negative_length
            heappop(self._by_length)

    def length_at(self, start: int) -> int:
        """Length of the run that begins at block `start`; 0 where none begins."""
        return self._end_of.get(start, start) - start

    def take(self, start: int, first: int, count: int) -> None:
        """Remove ``[first, first + count)`` from the run that begins at `start`."""
        end = self._end_of.pop(start)
        del self._start_of[end]
        self._num_blocks -= count
        for left, right in ((start, first), (first + count, end)):
            if left < right:
                self._insert(left, right)

    def _insert(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        heappush(self._by_length, (start - end, start))
        if len(self._by_length) > 4 * len(self._end_of) + 64:
            self._by_length = [(s - e, s) for s, e in self._end_of.items()]
            heapify(self._by_length)
