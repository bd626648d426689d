"""`AdaptersInUse`: which adapters the workers have, and how many open requests each has. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atom_core.errors import AdapterError
from atom_core.executor.protocol import Executor
from atom_core.messages import EngineOutput, EngineRequest, NamedAdapter


class AdaptersInUse:
    """Loads adapters into the workers, and evicts one once it is to go and its last request has ended.

    Args:
        executor: has the workers.
        most: adapters at a time, those that are to go among them.
    """

    def __init__(self, executor: Executor, most: int) -> None:
        self._executor, self._most = executor, most
        self._present: set[int] = set()
        self._leaving: set[int] = set()
        self._num_open: Counter[int] = Counter()
        self._of_request: dict[str, int] = {}

    def load(self, adapter: NamedAdapter) -> None:
        """Have the workers read an adapter; steps wait meanwhile.

        Raises:
            AdapterError: it cannot be served, or those that are to go still have requests.
        """
        if len(self._present) >= self._most:
            raise AdapterError(
                f"{len(self._present)} adapters are in memory, as many as max_loras allows, and {len(self._leaving)} "
                "of them wait for the last of their requests: try again later"
            )
        self._executor.load_adapter(adapter)
        self._present.add(adapter.id)

    def unload(self, adapter_id: int) -> None:
        """Take no further request for an adapter, and evict it after the last one that is open."""
        if adapter_id in self._present:
            self._leaving.add(adapter_id)
            self._evict_unused()

    def takes(self, adapter_id: int) -> bool:
        """Whether requests for it can be admitted."""
        return not adapter_id or (adapter_id in self._present and adapter_id not in self._leaving)

    def add(self, request: EngineRequest) -> None:
        """A request was admitted."""
        if request.adapter_id:
            self._of_request[request.request_id] = request.adapter_id
            self._num_open[request.adapter_id] += 1

    def take(self, news: Sequence[EngineOutput]) -> None:
        """Requests may have ended."""
        if not self._of_request:
            return
        for output in news:
            if output.finish_reason is not None and (own := self._of_request.pop(output.request_id, 0)):
                self._num_open[own] -= 1
        self._evict_unused()

    def _evict_unused(self) -> None:
        for adapter_id in [one for one in self._leaving if not self._num_open[one]]:
            # Steps on their way were submitted before, and are computed before.
            self._executor.unload_adapter(adapter_id)
            self._present.discard(adapter_id)
            self._leaving.discard(adapter_id)
            del self._num_open[adapter_id]
