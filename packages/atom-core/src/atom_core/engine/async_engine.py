"""`AsyncEngine`: the API process's side of an engine that runs in its own process. Torch-free."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.embedding_model import EmbeddingModel
from atom_core.engine.errors import EngineDeadError, EngineStartError, InvalidRequestError, ProfilerError
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.outputs.open_requests import OpenRequests
from atom_core.engine.outputs.request_stream import RequestStream
from atom_core.engine.process.engine_link import EngineLink
from atom_core.engine.process.wire import (
    AbortRequests,
    AddRequests,
    Failed,
    FromEngine,
    News,
    Profile,
    Pulse,
    Ready,
    Reply,
    Shutdown,
)
from atom_core.engine.startup import open_model, open_tokenizer
from atom_core.messages import Pooling, SamplingParams, StepStats, Submission
from atom_core.tokenization import TextThreads, Tokenizer

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 5.0
SILENCE_SECONDS = 60.0
# Where the queue's limit is not set, it is `max_num_seqs` times this.
QUEUE_FACTOR = 4


class AsyncEngine:
    """An engine in its own process, for asyncio programs such as the server. Made by `start`.

    Attributes:
        info: what the engine resolved at start.
        tokenizer: None with `skip_tokenizer_init`.
        texts: tokenizes beside the event loop; None without a tokenizer.
        stats: counts after the engine's last step; None before the first news.
        embedding_model: how its prompts become vectors.
        max_num_queued_requests: how many may wait beside the `info.max_num_seqs` that run.
    """

    info: EngineInfo
    embedding_model: EmbeddingModel
    max_num_queued_requests: int
    tokenizer: Tokenizer | None
    texts: TextThreads | None
    stats: StepStats | None

    def __init__(self, args: EngineArgs, *, step_timeout: float) -> None:
        self.tokenizer = None
        self.texts = None
        self.stats = None
        self._args = args
        self._step_timeout = step_timeout
        self._link = EngineLink(args, on_message=self._handle, on_failure=self._die)
        self._ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._open = OpenRequests(None, self._abort)
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._call_ids = itertools.count()
        self._last_pulse = time.monotonic()
        self._seconds_without_step = 0.0
        self._dead: str | None = None
        self._stopping = False

    @classmethod
    async def start(cls, args: EngineArgs, *, timeout: float = 600.0, step_timeout: float = 300.0) -> AsyncEngine:
        """Start the engine process and wait until it is ready.

        Args:
            timeout: seconds that the start may take.
            step_timeout: seconds after which a step that has not ended counts as hung.

        Raises:
            EngineStartError: with the cause as the last line.
            ConfigError, CheckpointError, TokenizerError: one line that says what is wrong with settings or model.
        """
        engine = cls(args, step_timeout=step_timeout)
        try:
            async with asyncio.timeout(timeout):
                await engine._start()
        except BaseException as error:
            await engine.shutdown()
            if isinstance(error, TimeoutError):
                raise EngineStartError(f"the engine was not ready within {timeout:g} s") from None
            raise
        return engine

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestStream:
        """News of all ``n`` samples until each is finished; `RequestOutput.index` tells which. Closing it aborts.

        The request is checked here, at the call, not at the first iteration.

        Raises:
            InvalidRequestError: before anything reaches the engine. With code "queue_full" too many requests wait
                already: try again later.
            EngineDeadError: where the engine is already dead. If it dies later, each sample gets an output with
                finish_reason "error".
        """
        return self.submit([prompt_token_ids], sampling_params, priority=priority, cache_salt=cache_salt)

    def embed(
        self,
        prompt_token_ids: Sequence[int],
        pooling: Pooling | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestStream:
        """The embedding of a prompt, by the model's own pooling without another: a `RequestOutput` with `embedding`.

        Raises:
            InvalidRequestError, EngineDeadError: as `generate`.
        """
        wanted = self.embedding_model.choose_pooling(pooling)
        return self.submit([prompt_token_ids], wanted, priority=priority, cache_salt=cache_salt)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        wanted: SamplingParams | Pooling,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestStream:
        """One stream for several prompts, all of which are checked before any of them runs.

        Args:
            wanted: how to generate, as `generate`, or how to make embeddings, as `embed`.

        Returns news of each by its `request_id`: `RequestStream.request_ids` has them in the order of the prompts.

        Raises:
            InvalidRequestError, EngineDeadError: as `generate`.
        """
        self.check_health()
        n = wanted.n if isinstance(wanted, SamplingParams) else 1
        self.check_room(len(prompts), n if isinstance(n, int) else 1)
        submission = self._submission(prompts, wanted, priority=priority, cache_salt=cache_salt)
        message = self._link.encode(AddRequests(submission))
        stream = self._open.add(submission)
        self._link.send_encoded(message)
        return stream

    def check_room(self, num_prompts: int, n: int = 1) -> None:
        """Whether `n` samples of each of so many prompts could be queued now; those admitted are not touched.

        `submit` asks this first; whoever makes something for each sample before that asks it earlier.

        Raises:
            InvalidRequestError: with code "queue_full" try again later; other codes mean that it could never be.
        """
        most = self.info.max_num_seqs + self.max_num_queued_requests
        wanted, num_open = num_prompts * n, self._open.num_samples
        limits = f"max_num_seqs = {self.info.max_num_seqs}, max_num_queued_requests = {self.max_num_queued_requests}"
        if wanted > most:
            message = f"{num_prompts} prompts with n = {n} are {wanted} samples; at most {most} may run and wait"
            raise InvalidRequestError(f"{message} ({limits}): ask for fewer", "n" if n > 1 else "prompt")
        if num_open + wanted > most:
            message = f"{num_open} samples run or wait, of at most {most}, and there is no room for {wanted} more"
            raise InvalidRequestError(f"{message} ({limits}): try again later", code="queue_full")

    async def prepare(self, sampling_params: SamplingParams) -> SamplingParams:
        """Do what takes long with a request's parameters beside the event loop; to be given to `submit` or `generate`.

        Its grammar is compiled (`generate` only looks at its size), and its bad words are tokenized.

        Raises:
            InvalidRequestError: the grammar is not sound, or took too long. Without this call a request with such a
                grammar ends with finish_reason "error". With code "queue_full" too many others are being compiled.
        """
        if sampling_params.structured_outputs is not None:
            self._inputs.validate_constraint(sampling_params)
            await self._inputs.check_grammar_async(sampling_params)
        if sampling_params.bad_words and self.texts is not None:
            work = partial(self._inputs.with_bad_words, sampling_params)
            sampling_params = await self.texts.run(work, is_long=False)
        return sampling_params

    async def abort(self, stream: RequestStream) -> None:
        """End what is open of a stream: it gets finish_reason "abort" for each sample, then it ends."""
        if open_ids := self._open.open_ids(stream.request_ids):
            self._link.send(AbortRequests(open_ids))

    async def start_profile(self) -> None:
        """Start tracing in the engine process; ProfilerError says what to set where no directory was given."""
        await self._profile(start=True)

    async def stop_profile(self) -> None:
        """Stop tracing and write the traces."""
        await self._profile(start=False)

    def check_health(self) -> None:
        """Raise EngineDeadError unless the engine's process lives and makes progress."""
        if self._dead is None and not self._link.process.is_alive:
            self._die(self._link.process.describe_exit())
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._stopping:
            raise EngineDeadError("the engine is shutting down")
        if self._seconds_without_step > self._step_timeout:
            raise EngineDeadError(f"the engine hangs: no step has ended for {self._seconds_without_step:.0f} s")
        if (silence := time.monotonic() - self._last_pulse) > SILENCE_SECONDS:
            raise EngineDeadError(f"the engine hangs: its process has been silent for {silence:.0f} s")

    @property
    def pid(self) -> int | None:
        """The id of the engine's process; None before it starts."""
        return self._link.process.pid

    @property
    def folder(self) -> str:
        """Private folder with the sockets to the engine's process."""
        return self._link.process.folder

    @property
    def num_unfinished_requests(self) -> int:
        """Samples that have not finished."""
        return self._open.num_samples

    async def shutdown(self, drain_timeout: float = 0.0) -> None:
        """Let requests finish for `drain_timeout` seconds, abort the rest, end the process, remove its files."""
        if self._stopping:
            return
        if drain_timeout > 0 and self._dead is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._open.wait_until_idle(), drain_timeout)
        self._stopping = True
        self._open.end_all("abort")
        if self.texts is not None:
            self.texts.close()
        serves = self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None
        grace = 0.0
        if serves and self._dead is None:
            self._link.send(Shutdown())
            grace = STOP_GRACE_SECONDS
        await self._link.close(grace)

    async def _start(self) -> None:
        started = time.perf_counter()
        checkpoint = await asyncio.to_thread(open_model, self._args)
        self._link.open(checkpoint.path)
        self.tokenizer = await asyncio.to_thread(open_tokenizer, self._args, checkpoint)
        if self.tokenizer is not None:
            self.texts = await asyncio.to_thread(TextThreads, self.tokenizer)
        info = await self._ready
        self._last_pulse = time.monotonic()
        self.info = msgspec.structs.replace(info, timings={**info.timings, "total": time.perf_counter() - started})
        self.embedding_model = EmbeddingModel.read(info.model_path)
        given = self._args.max_num_queued_requests
        self.max_num_queued_requests = QUEUE_FACTOR * info.max_num_seqs if given is None else given
        can_generate = await asyncio.to_thread(lambda: checkpoint.has_head)
        self._inputs = InputProcessor.of_engine(info, self._args, self.tokenizer, can_generate=can_generate)
        self._open = OpenRequests(self.tokenizer, self._abort)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case News(outputs, stats):
                self.stats = stats
                self._open.take(outputs)
            case Pulse(seconds_without_step, stats):
                self._last_pulse = time.monotonic()
                self._seconds_without_step = seconds_without_step
                self.stats = stats
            case Reply(call_id, error):
                call = self._calls.pop(call_id, None)
                if call is not None and not call.done():
                    call.set_result(error)
            case Ready(info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case Failed(message=text):
                self._die(text)

    def _abort(self, request_ids: list[str]) -> None:
        """Nobody waits for these requests any more."""
        if self._dead is None and not self._stopping:
            self._link.send(AbortRequests(request_ids))

    def _die(self, message: str) -> None:
        """Everything open ends with "error"; nothing new is taken."""
        if self._dead is not None or self._stopping:
            return
        self._dead = message
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(message))
            return
        logger.error("the engine is dead: %s", message)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError(message))
        self._calls.clear()
        self._open.end_all("error", f"the engine died: {message.splitlines()[-1]}")

    async def _profile(self, *, start: bool) -> None:
        self.check_health()
        call_id = next(self._call_ids)
        call = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._link.send(Profile(call_id, start))
        if (error := await call) is not None:
            raise ProfilerError(error)

    def _submission(
        self, prompts: Sequence[Sequence[int]], wanted: SamplingParams | Pooling, *, priority: int, cache_salt: str
    ) -> Submission:
        """The checked prompts."""
        if isinstance(wanted, str):
            return self._inputs.process_embedding(prompts, wanted, priority=priority, cache_salt=cache_salt)
        submission = self._inputs.process(prompts, wanted, priority=priority, cache_salt=cache_salt)
        self._inputs.check_num_logprobs(submission)
        return submission
