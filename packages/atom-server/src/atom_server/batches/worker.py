"""`BatchWorker`: answers the open batches beside live requests, a batch of each key at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from atom_server.access.keys import Caller
from atom_server.batches.answer_files import AnswerFiles
from atom_server.batches.asking import asking
from atom_server.batches.journal import Answer, Refusal
from atom_server.batches.lines import BadLine, BatchError, BatchFile, BatchLine
from atom_server.batches.objects import StoredBatch
from atom_server.batches.run import answer_all
from atom_server.batches.store import BatchStore
from atom_server.connections.disconnect import cancel_all
from atom_server.errors import APIError

if TYPE_CHECKING:
    from atom_server.state import ServerState

logger = logging.getLogger(__name__)

MAX_LINES = 50_000
_EXPIRED = Refusal("batch_expired", "this request could not be answered before the completion window ended")
_LOOK_AGAIN_S = 0.25


class BatchWorker:
    """Begins with what an earlier server left open, and takes in new batches until it is cancelled.

    Args:
        at_once: lines of all batches that are asked at once.

    Attributes:
        num_uploads: files that are on their way.
    """

    def __init__(self, store: BatchStore, *, at_once: int) -> None:
        self.store = store
        self._at_once = at_once
        self._places = asyncio.Semaphore(at_once)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._app: ASGIApp | None = None
        self.num_uploads = 0

    @contextlib.contextmanager
    def uploading(self) -> Generator[None, None, None]:
        """Count an upload while it comes."""
        self.num_uploads += 1
        try:
            yield
        finally:
            self.num_uploads -= 1

    async def run(self, app: ASGIApp, state: ServerState) -> None:
        """Answer batches through the routes of `app`, until cancelled; what is open then is for the next server."""
        self._app, self._state = app, state
        try:
            for batch in self.store.open_batches():
                self.begin(batch)
            await asyncio.Event().wait()
        finally:
            self._app = None
            await cancel_all(*self._tasks.values())

    def begin(self, batch: StoredBatch) -> None:
        """Work on a batch, where there is an app."""
        if self._app is None:
            return
        caller = self._state.keys.named(batch.owner)
        if caller is None:
            logger.warning("%s waits: its key %r is none of this server", batch.public.id, batch.owner)
            return
        task = asyncio.ensure_future(self._work(self._app, batch, dataclasses.replace(caller, is_batch=True)))
        self._tasks[batch.public.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.public.id, None))

    async def cancel(self, batch: StoredBatch) -> None:
        """End a batch; answers that had come are kept.

        Raises:
            APIError: 409; it has ended already.
        """
        public = batch.public
        if public.status in ("cancelling", "cancelled"):
            return
        if public.status not in ("validating", "in_progress"):
            message = f"this batch is {public.status}; only one that is validating or in_progress can be cancelled"
            raise APIError(409, message, param="batch_id", code="not_cancellable")
        public.become("cancelling")
        if (task := self._tasks.get(public.id)) is not None:
            task.cancel()
        await self.store.save(batch)

    async def _work(self, app: ASGIApp, batch: StoredBatch, caller: Caller) -> None:
        public, end = batch.public, "completed"
        try:
            if public.status == "cancelling":
                end = "cancelled"
            else:
                async with asyncio.timeout(max(public.expires_at - time.time(), 0)):
                    await self._answer(app, batch, caller)
        except TimeoutError:
            end = "expired"
        except asyncio.CancelledError:
            if public.status != "cancelling":
                raise
            end = "cancelled"
        except Exception as error:
            end = "failed"
            code, said = "invalid_file", str(error)
            if isinstance(error, APIError):
                code = error.code
            elif not isinstance(error, BatchError):
                logger.exception("%s failed", public.id)
                code, said = "internal_error", "the batch failed; the server's log has the details"
            public.errors = {"object": "list", "data": [{"code": code, "message": said, "param": None, "line": None}]}
        try:
            await self._finish(batch, end)
        except Exception:
            logger.exception("%s could not be ended; the next start of the server tries again", public.id)

    async def _answer(self, app: ASGIApp, batch: StoredBatch, caller: Caller) -> None:
        public = batch.public
        file = self._requests(batch)
        if public.status == "validating":
            found = await asyncio.to_thread(file.num_lines)
            if not 0 < found <= MAX_LINES:
                raise BatchError(f"the file has {found} requests, one in each line; it may have 1 to {MAX_LINES}")
            public.request_counts.total = found
            public.become("in_progress")
            await self.store.save(batch)
        async with self._turns[batch.owner], self._answers(batch) as answers, asking(app, caller) as ask:

            def waiting() -> Iterator[BatchLine]:
                for line in file.read():
                    if line in answers:
                        continue
                    if isinstance(line, BadLine):
                        answers.add(line, Refusal("invalid_line", line.problem))
                    else:
                        yield line

            async def ask_later(line: BatchLine) -> Answer:
                await self._until_requests_are_taken()
                return await ask(line)

            await answer_all(waiting(), ask_later, answers.add, at_once=self._at_once, places=self._places)

    async def _until_requests_are_taken(self) -> None:
        """Wait where the engine sleeps or the server is about to end, without a line in its log for each try."""
        while True:
            try:
                return self._state.check_takes_requests()
            except APIError:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _finish(self, batch: StoredBatch, end: str) -> None:
        public = batch.public
        if end == "completed":
            public.become("finalizing")
        if end == "expired":
            async with self._answers(batch) as answers:
                await asyncio.to_thread(self._refuse_the_rest, batch, answers)
        public.output_file_id = await self.store.publish(batch, batch.output_id, "output")
        public.error_file_id = await self.store.publish(batch, batch.error_id, "error")
        public.become(end)
        await self.store.save(batch)

    def _refuse_the_rest(self, batch: StoredBatch, answers: AnswerFiles) -> None:
        with contextlib.suppress(APIError):  # where there is no room, that there is no answer says the same
            for line in self._requests(batch).read():
                if line not in answers:
                    answers.add(line, _EXPIRED)

    def _requests(self, batch: StoredBatch) -> BatchFile:
        return BatchFile(
            path=self.store.folder.content_path(batch.public.input_file_id),
            routes=(batch.public.endpoint,),
            max_line_bytes=self._state.options.max_body_bytes,
        )

    @contextlib.asynccontextmanager
    async def _answers(self, batch: StoredBatch) -> AsyncGenerator[AnswerFiles, None]:
        opening = asyncio.ensure_future(asyncio.to_thread(AnswerFiles, self.store.folder, batch, self.store.room))
        try:
            answers = await asyncio.shield(opening)
        except asyncio.CancelledError:
            (await opening).close()  # its files would stay open, and be locked
            raise
        try:
            yield answers
        finally:
            await asyncio.to_thread(answers.close)
