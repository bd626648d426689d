"""`WaitingQueue`: requests that wait, a queue for each tenant, and siblings that wait for a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.tenant import Tenant

# Tenants without requests are remembered, with what they have had, as long as there are no more than these.
MAX_IDLE_TENANTS = 1024

_Heap = list[tuple[tuple[float, int], Request]]


@dataclass
class _Line:
    """The waiting requests of one tenant, by their turns."""

    tenant: Tenant
    heap: _Heap = field(default_factory=list)


class WaitingQueue:
    """Heaps of requests, one for each tenant. The tenant that has been served least is next, with its first request.

    That is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant
    pays for the prompt tokens that are computed for it and, `OUTPUT_COST` times as much, for each output token. Whoever
    comes back after a pause begins at what the others have had: a pause saves nothing up.

    Preempted requests have been paid for, and go before all but earlier ones of their own tenant. Requests that left
    the queue without being popped stay in it until met (`discard` counts them). Siblings of a request whose prompt is
    being computed are held aside, so that they find its blocks in the cache.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._lines: dict[str, _Line] = {}
        self._returning: _Heap = []
        self._held: dict[str, list[Request]] = {}
        self._aside: set[Request] = set()
        self._num_waiting = 0
        self._served = 0.0

    def __len__(self) -> int:
        """Requests that wait, held ones included."""
        return self._num_waiting

    def tenant(self, name: str) -> Tenant:
        """The account of a tenant, for one more request of it."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        tenant.num_requests += 1
        return tenant

    def forget(self, request: Request) -> None:
        """A request has ended. A tenant that owes nothing need not be remembered."""
        self._aside.discard(request)
        tenant = request.tenant
        tenant.num_requests -= 1
        if tenant.num_requests:
            return
        if tenant.served <= self._served:
            del self._tenants[tenant.name]
        elif len(self._tenants) > MAX_IDLE_TENANTS:
            self._tenants = {name: other for name, other in self._tenants.items() if other.num_requests}

    def push(self, request: Request) -> None:
        """The request waits for its turn."""
        self._num_waiting += 1
        self._push(request)

    def peek(self) -> Request | None:
        """The request whose turn it is."""
        newcomer, returning = self._newcomer(), _top(self._returning)
        if newcomer is None or returning is None:
            return newcomer or returning
        is_earlier = newcomer.tenant is returning.tenant and newcomer.key < returning.key
        return newcomer if is_earlier else returning

    def pop(self) -> Request:
        """Take out what `peek` shows, and count it as served; IndexError where there is none."""
        request = self.peek()
        if request is None:
            raise IndexError("no request waits")
        self._num_waiting -= 1
        if request.has_run:
            heappop(self._returning)
        else:
            heappop(self._lines[request.tenant.name].heap)
            self._served = max(self._served, request.tenant.served)
        return request

    def discard(self) -> None:
        """One waiting request was finished; its entry goes when it is met, or with many others."""
        self._num_waiting -= 1
        heaps = [self._returning, *(line.heap for line in self._lines.values())]
        if sum(map(len, heaps)) > 2 * self._num_waiting + 64:
            for heap in heaps:
                heap[:] = [entry for entry in heap if entry[1].status is RequestStatus.WAITING]
                heapify(heap)

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
                self._push(request)

    def set_aside(self, request: Request) -> None:
        """A request waits for something else than its turn, until `take_back`."""
        self._num_waiting += 1
        self._aside.add(request)

    def take_back(self, request: Request) -> None:
        """A request that was set aside waits for its turn; any other is left as it is."""
        if request in self._aside:
            self._aside.remove(request)
            self._push(request)

    def _push(self, request: Request) -> None:
        if request.has_run:
            heappush(self._returning, (request.key, request))
            return
        name = request.tenant.name
        if name not in self._lines:
            self._lines[name] = _Line(request.tenant)
            request.tenant.served = max(request.tenant.served, self._served)
        heappush(self._lines[name].heap, (request.turn, request))

    def _newcomer(self) -> Request | None:
        """The first request of the tenant that has had least."""
        best: Request | None = None
        empty = []
        for name, line in self._lines.items():
            head = _top(line.heap)
            if head is None:
                empty.append(name)
            elif best is None or (line.tenant.served, head.key) < (best.tenant.served, best.key):
                best = head
        for name in empty:
            del self._lines[name]
        return best


def _top(heap: _Heap) -> Request | None:
    """The first that still waits."""
    while heap and heap[0][1].status is not RequestStatus.WAITING:
        heappop(heap)
    return heap[0][1] if heap else None
