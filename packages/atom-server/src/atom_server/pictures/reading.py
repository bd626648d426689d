"""`FileReader`: a URL becomes the answer of a process with limits, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from atom_core.limited_process import LimitedProcesses, TooMuchError, UnansweredError
from atom_server.errors import RETRY_AFTER, APIError
from atom_server.pictures.data_url import PictureError, data_of, is_fetched
from atom_server.pictures.fetching.beside import FetcherBeside
from atom_server.pictures.fetching.fetcher import Fetcher
from atom_server.pictures.limits import NUM_FETCHED, NUM_PROCESSES
from atom_server.pictures.messages import ANSWER, ENCODER, Answer, Question

AskOf = Callable[[bytes, bool], Question]
"""A file, and whether it is base64 -> what is asked about it."""


class FileReader:
    """Reads files of one kind for one event loop.

    Args:
        processes: where they are decoded.
        num_bytes: the most of a file.
        media_types: what the files of ``data:`` URLs may be.
        code: that of errors about a file.
        fetcher: fetches those of ``http`` and ``https`` URLs; None refuses them.

    Attributes:
        processes: as given.
    """

    def __init__(
        self,
        processes: LimitedProcesses,
        num_bytes: int,
        media_types: Sequence[str],
        *,
        code: str,
        fetcher: Fetcher | None = None,
    ) -> None:
        self.processes = processes
        self._num_bytes, self._media_types, self._code = num_bytes, media_types, code
        self._fetcher = None if fetcher is None else FetcherBeside(fetcher)
        self._fetched = asyncio.Semaphore(NUM_FETCHED)
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="pictures")

    async def read(self, name: str, url: str, ask: AskOf) -> Answer:
        """What the process says of the file.

        Args:
            name: what errors call it.

        Raises:
            APIError: 400; it cannot be taken. 503; there was no time for it.
        """
        if self._fetcher is None or not is_fetched(url):
            return await self._run(self._ask_of_url, name, url, ask)
        async with self._fetched:
            try:
                file = await self._fetcher.fetch(url)
            except PictureError as error:
                raise self._refused(name, str(error)) from None
            return await self._run(self._ask, name, ask, file, False)

    def close(self) -> None:
        """End the processes; what has not begun never will."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.processes.close()

    async def _run(self, work: Callable[..., Answer], *given: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _ask_of_url(self, name: str, url: str, ask: AskOf) -> Answer:
        most = self._num_bytes
        try:
            data = data_of(url, self._media_types)
            if len(data) > 2 * most:  # base64 takes a third more, and some have ends of lines
                raise PictureError(f"its file has more than {most} bytes, which are read at most")
        except PictureError as error:
            raise self._refused(name, str(error)) from None
        return self._ask(name, ask, data.encode(), True)

    def _ask(self, name: str, ask: AskOf, file: bytes, is_base64: bool) -> Answer:
        try:
            answer = ANSWER.decode(self.processes.ask(ENCODER.encode(ask(file, is_base64))))
        except TooMuchError as error:
            raise self._refused(name, str(error)) from None
        except UnansweredError as error:
            message = f"{name}: its decoder {error}"
            raise APIError(503, message, param="messages", code="overloaded", headers=RETRY_AFTER) from None
        if answer.error:
            raise self._refused(name, answer.error)
        return answer

    def _refused(self, name: str, reason: str) -> APIError:
        return APIError(400, f"{name}: {reason}", param="messages", code=self._code)
