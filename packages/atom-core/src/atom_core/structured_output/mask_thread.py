"""`MaskThread`: makes the masks that would hold up the engine's loop. The libraries leave other threads running."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Sequence

from atom_core.structured_output.matcher import Matcher


class MaskJob:
    """A mask on its way.

    Args:
        matcher: the job's own until it is done.
        token_ids: came before the mask, and are followed first.

    Attributes:
        is_done: the matcher has its mask, or an error.
        is_wanted: set to False where nobody waits any more: what is not begun then never is.
    """

    def __init__(self, matcher: Matcher, token_ids: Sequence[int] = ()) -> None:
        self.matcher = matcher
        self._token_ids = token_ids
        self.is_done = False
        self.is_wanted = True

    def run(self) -> None:
        """Make the mask; never raises."""
        try:
            self.matcher.accept(self._token_ids)
            self.matcher.mask()
        except BaseException as error:  # a library's panics are no Exceptions
            self.matcher.fail(f"{type(error).__name__} of the library")
        finally:
            self.is_done = True


class MaskThread:
    """One thread, started with its first job. Next is the mask of the request whose masks took the least work so far,
    so that nobody waits behind many slow masks of one client."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: list[tuple[float, int, MaskJob]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def begin(self, matcher: Matcher, token_ids: Sequence[int] = ()) -> MaskJob:
        """Make the mask of `matcher` after these tokens, as soon as it is its turn."""
        job = MaskJob(matcher, token_ids)
        with self._changed:
            heapq.heappush(self._jobs, (matcher.work_so_far, next(self._numbers), job))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
                self._thread.start()
        return job

    def close(self) -> None:
        """End the thread after the mask that it makes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.run()

    def _next(self) -> MaskJob | None:
        with self._changed:
            while not self._is_closed:
                while self._jobs:
                    *_, job = heapq.heappop(self._jobs)
                    if job.is_wanted:
                        return job
                self._changed.wait()
        return None
