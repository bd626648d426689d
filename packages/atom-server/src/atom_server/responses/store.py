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
    """A response as clients see it, and the conversation that it ends.

    Attributes:
        response: the JSON object; replaced when a background response comes to its end.
        items: the input, all that came before it included.
        events: the events of its stream; None where it was not streamed.
        task: makes it in the background; None where nothing is to be awaited.
        owner: the key that made it; nobody else can see it.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]
    events: EventLog | None = None
    task: asyncio.Task[None] | None = None
    owner: str = ""

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


class _Shelf:
    """What one owner has stored, the oldest first."""

    def __init__(self) -> None:
        self.running: dict[str, _Counted] = {}
        self.finished: OrderedDict[str, _Counted] = OrderedDict()
        self.num_characters = 0

    def __len__(self) -> int:
        return len(self.running) + len(self.finished)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        counted = _Counted(stored, stored.size)
        self.num_characters += counted.size
        (self.running if stored.is_running else self.finished)[response_id] = counted

    def take_out(self, response_id: str) -> None:
        counted = self.running.pop(response_id, None) or self.finished.pop(response_id, None)
        if counted is not None:
            self.num_characters -= counted.size


class ResponseStore:
    """Keeps the newest responses of each owner. The owner that holds most makes room: its oldest ended one goes.

    An owner sees its own responses only: an id of another owner's looks like one that never existed. Sizes are counted
    as responses come and go, so nothing takes longer the more is stored.

    Args:
        max_running: responses that are made in the background at once; None for as many as are kept.
    """

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_characters: int = MAX_CHARACTERS,
        *,
        max_running: int | None = None,
    ) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._max_running = max_responses if max_running is None else min(max_running, max_responses)
        # By owner; there are no more owners than keys.
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, in the place of an earlier one of its owner with its id.

        Raises:
            APIError: 503; it would have to take the place of one that is still being made.
        """
        response_id, shelf = stored.response["id"], self._shelves.setdefault(stored.owner, _Shelf())
        if stored.is_running and response_id not in shelf.running:
            self._check_room(stored.owner, len(shelf.running))
        shelf.take_out(response_id)
        shelf.put(response_id, stored)
        self._make_room()

    def changed(self, stored: StoredResponse) -> None:
        """Count a response anew, because it ended or its events grew. One that is not stored is ignored."""
        counted = self._counted(stored.response["id"], stored.owner)
        if counted is not None and counted.stored is stored:
            self.put(stored)

    def get(self, response_id: str, owner: str = "") -> StoredResponse | None:
        """A response, or None where it was never stored by this owner, was deleted or made room."""
        counted = self._counted(response_id, owner)
        return None if counted is None else counted.stored

    def find(self, response_id: str, owner: str = "") -> StoredResponse:
        """A response; APIError 404 where there is none."""
        stored = self.get(response_id, owner)
        if stored is None:
            message = f"there is no response {response_id[:128]!r}: it was not stored, was deleted, or made room"
            raise APIError(404, message, param="response_id", code="response_not_found")
        return stored

    def remove(self, response_id: str, owner: str = "") -> None:
        """Forget a response; ends the work on it."""
        stored = self.find(response_id, owner)
        self._shelves[owner].take_out(response_id)
        if stored.task is not None:
            stored.task.cancel()

    def _counted(self, response_id: str, owner: str) -> _Counted | None:
        shelf = self._shelves.get(owner)
        return None if shelf is None else shelf.running.get(response_id) or shelf.finished.get(response_id)

    def _check_room(self, owner: str, num_own: int) -> None:
        """Whether one more may be made; a key leaves as much room to others as it takes."""
        num_running = sum(len(shelf.running) for shelf in self._shelves.values())
        num_free = self._max_running - num_running
        if num_free < 1 or (owner and num_own and num_own + 1 > num_free):
            most = f"at most {self._max_running} may be"
            message = f"{num_running} responses are being made in the background already ({most}): try again later"
            raise APIError(503, message, code="queue_full", headers=RETRY_AFTER)

    def _make_room(self) -> None:
        while len(self) > self._max_responses or self._num_characters > self._max_characters:
            shelves = [shelf for shelf in self._shelves.values() if shelf.finished]
            if not shelves:
                return
            largest = max(shelves, key=self._share)
            largest.take_out(next(iter(largest.finished)))

    def _share(self, shelf: _Shelf) -> float:
        return max(len(shelf) / self._max_responses, shelf.num_characters / self._max_characters)

    @property
    def _num_characters(self) -> int:
        return sum(shelf.num_characters for shelf in self._shelves.values())
