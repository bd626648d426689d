"""`ResponseStore`: the responses that clients may still ask for, in memory and bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from atom_server.errors import RETRY_AFTER, APIError
from atom_server.responses.event_log import EventLog

MAX_RESPONSES = 1024
MAX_CHARACTERS = 64 * 2**20


@dataclass
class StoredResponse:
    """A response, as it is to be shown, and the conversation that it ends.

    Attributes:
        response: the JSON object; replaced when a background response comes to its end.
        items: the input, all that came before it included.
        events: of its stream; None where it was not streamed.
        task: makes it in the background; None where nothing is to be awaited.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]
    events: EventLog | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is still being made."""
        return self.response["status"] in ("queued", "in_progress")

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items, for a response that goes on from this one."""
        return [*self.items, *self.response["output"]]

    @property
    def size(self) -> int:
        """About how many characters it takes."""
        events = 0 if self.events is None else self.events.size
        return events + sum(len(text) for item in self.conversation for text in _texts(item))


class _Counted(NamedTuple):
    """A response that is kept, and its size when it was last counted."""

    stored: StoredResponse
    size: int


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


class ResponseStore:
    """Keeps the newest responses; those that ended longest ago make room.

    What is kept is counted as it comes and goes: nothing here takes longer the more is stored.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._running: dict[str, _Counted] = {}
        self._finished: OrderedDict[str, _Counted] = OrderedDict()
        self._num_characters = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, in the place of an earlier one with its id.

        Raises:
            APIError: 503; it would have to take the place of one that is still being made.
        """
        response_id = stored.response["id"]
        if stored.is_running and response_id not in self._running and len(self._running) >= self._max_responses:
            message = f"{self._max_responses} responses are being made in the background already; try again later"
            raise APIError(503, message, code="queue_full", headers=RETRY_AFTER)
        self._take_out(response_id)
        counted = _Counted(stored, stored.size)
        self._num_characters += counted.size
        (self._running if stored.is_running else self._finished)[response_id] = counted
        self._make_room()

    def changed(self, stored: StoredResponse) -> None:
        """A response came to its end, or its events grew: count it anew; nothing happens to one that is not here."""
        counted = self._counted(stored.response["id"])
        if counted is not None and counted.stored is stored:
            self.put(stored)

    def get(self, response_id: str) -> StoredResponse | None:
        """A response, or None where it was never stored, was deleted or made room."""
        counted = self._counted(response_id)
        return None if counted is None else counted.stored

    def find(self, response_id: str) -> StoredResponse:
        """A response; APIError 404 where there is none."""
        stored = self.get(response_id)
        if stored is None:
            message = f"there is no response {response_id[:128]!r}: it was not stored, was deleted, or made room"
            raise APIError(404, message, param="response_id", code="response_not_found")
        return stored

    def remove(self, response_id: str) -> None:
        """Forget a response; ends the work on it."""
        stored = self.find(response_id)
        self._take_out(response_id)
        if stored.task is not None:
            stored.task.cancel()

    def _counted(self, response_id: str) -> _Counted | None:
        return self._running.get(response_id) or self._finished.get(response_id)

    def _take_out(self, response_id: str) -> None:
        counted = self._running.pop(response_id, None) or self._finished.pop(response_id, None)
        if counted is not None:
            self._num_characters -= counted.size

    def _make_room(self) -> None:
        while self._finished and (len(self) > self._max_responses or self._num_characters > self._max_characters):
            _, counted = self._finished.popitem(last=False)
            self._num_characters -= counted.size
