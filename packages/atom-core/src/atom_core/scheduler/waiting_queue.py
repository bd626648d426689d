"""`WaitingQueue`: requests that wait, in order of their keys, and siblings that wait for a prompt."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from atom_core.scheduler.request import Request, RequestStatus


class WaitingQueue:
    """A heap by key. Requests that left the queue without being popped stay in it until met (`discard` counts them).

    Siblings of a request whose prompt is being computed are held aside, so that they find its blocks in the cache.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._held: dict[str, list[Request]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """Requests that wait, held ones included."""
        return self._num_waiting

    def push(self, request: Request) -> None:
        """The request waits for its turn."""
        self._num_waiting += 1
        heappush(self._heap, (request.key, request))

    def peek(self) -> Request | None:
        """The request whose turn it is."""
        heap = self._heap
        while heap and heap[0][1].status is not RequestStatus.WAITING:
            heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Request:
        """Take out what `peek` shows."""
        self._num_waiting -= 1
        return heappop(self._heap)[1]

    def discard(self) -> None:
        """One waiting request was finished; its entry goes when it is met, or with many others."""
        self._num_waiting -= 1
        if len(self._heap) > 2 * self._num_waiting + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is RequestStatus.WAITING]
            heapify(self._heap)

    def lead(self, parent_id: str) -> None:
        """From now on siblings of `parent_id` are held."""
        self._held.setdefault(parent_id, [])

    def is_led(self, parent_id: str) -> bool:
        """Whether siblings of `parent_id` are held."""
        return parent_id in self._held

    def hold(self, parent_id: str, request: Request) -> None:
        """A sibling waits until `release_siblings`."""
        self._num_waiting += 1
        self._held[parent_id].append(request)

    def release_siblings(self, parent_id: str) -> None:
        """The prompt is computed, or never will be: siblings take their turns."""
        for request in self._held.pop(parent_id, ()):
            if request.status is RequestStatus.WAITING:
                heappush(self._heap, (request.key, request))
