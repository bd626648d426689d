"""`KeptPrompts`: prompts in memory that peers are to fetch, until one has, or has not come in time."""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from atom_core.messages import PeerPrompt, Transfer
from atom_core.worker.transfer.wire import TransferError

# Names of prompts that have ended, for an answer in words.
NUM_REMEMBERED = 4096


class _Kept:
    """A prompt: its places, who waits for its end, and until when."""

    def __init__(self, transfer: Transfer, prompt: PeerPrompt, until: float) -> None:
        self.prompt, self.until = prompt, until
        self.places = [copy.source for copy in transfer.copies]
        self.future: Future[int] = Future()
        self.is_taken = False


class KeptPrompts:
    """For several threads. A prompt that is being sent stays, however long it takes: its places must not be reused.

    Args:
        hold_seconds: how long a prompt waits.
        clock: tells seconds.
    """

    def __init__(self, hold_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_seconds, self._clock = hold_seconds, clock
        self._changed = threading.Condition()
        self._kept: dict[str, _Kept] = {}
        self._ended: deque[str] = deque(maxlen=NUM_REMEMBERED)
        self._is_closed = False

    def add(self, transfer: Transfer) -> Future[int]:
        """Keep the prompt of a transfer; how many of its blocks were fetched comes at the end."""
        if transfer.prompt is None:
            raise ValueError("a prompt without a name cannot be fetched")
        kept = _Kept(transfer, transfer.prompt, self._clock() + self._hold_seconds)
        with self._changed:
            self._kept[kept.prompt.key] = kept
            self._changed.notify_all()
        return kept.future

    @contextlib.contextmanager
    def taken(self, key: str, digest: bytes, seconds: float) -> Iterator[list[int]]:
        """The places of a prompt, by position. When this ends, the prompt does; as fetched, unless an error is raised.

        Args:
            key: the prompt's name.
            digest: a hash of its tokens, which must be the same here.
            seconds: waits so long for the step that keeps it.

        Raises:
            TransferError: it is not there.
        """
        kept = self._take(key, digest, seconds)
        num_done = 0
        try:
            yield kept.places
            num_done = len(kept.places)
        finally:
            with self._changed:
                self._end(kept, num_done)

    def look(self) -> None:
        """End what nobody has fetched in time."""
        now = self._clock()
        with self._changed:
            for kept in [kept for kept in self._kept.values() if kept.until < now and not kept.is_taken]:
                self._end(kept, 0)

    def close(self) -> None:
        """Nobody gets anything any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _take(self, key: str, digest: bytes, seconds: float) -> _Kept:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or key in self._kept or key in self._ended, seconds)
            kept = self._kept.get(key)
            if self._is_closed or kept is None or kept.is_taken:
                raise TransferError("the prompt is not kept any more: it was fetched, or nobody came in time")
            if not hmac.compare_digest(kept.prompt.digest, digest):
                raise TransferError("the prompt there has other tokens")
            kept.is_taken = True
            return kept

    def _end(self, kept: _Kept, num_done: int) -> None:
        del self._kept[kept.prompt.key]
        self._ended.append(kept.prompt.key)
        kept.future.set_result(num_done)
