"""`AsyncEngine`: the API process's side of an engine that runs in its own process. Torch-free."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.adapters.names import AdapterNames
from atom_core.engine.embedding_model import EmbeddingModel
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.checked_prompts import CheckedPrompts, beside_the_loop
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.queue_limits import Load, QueueLimits
from atom_core.engine.inputs.validation import check_prompt_ids
from atom_core.engine.judging import Judging
from atom_core.engine.outputs.open_requests import OpenRequests
from atom_core.engine.outputs.request_stream import RequestStream
from atom_core.engine.replicas.engine_control import EngineControl
from atom_core.engine.replicas.replicas import EngineDeath, Replicas
from atom_core.engine.replicas.status import EngineStatus, total_stats
from atom_core.engine.startup import open_model, open_tokenizer
from atom_core.errors import EngineStartError
from atom_core.folder_code import code_that_ran
from atom_core.messages import Image, NamedAdapter, Pooling, PoolingKind, SamplingParams, StepStats
from atom_core.tokenization import TextThreads, Tokenizer


class AsyncEngine:
    """An engine in its own process, for asyncio programs such as the server. Made by `start`.

    Attributes:
        info: what the engine resolved at start.
        tokenizer: None with `skip_tokenizer_init`.
        texts: tokenizes beside the event loop; None without a tokenizer.
        embedding_model: how its prompts become vectors.
        judging: how it scores pairs of texts, and what labels it has.
        queue_limits: how much may run and wait.
        control: what is asked of the engine as a whole, such as a pause.
        adapters: the adapters that requests may name.
    """

    info: EngineInfo
    embedding_model: EmbeddingModel
    judging: Judging
    queue_limits: QueueLimits
    tokenizer: Tokenizer | None
    texts: TextThreads | None
    control: EngineControl
    adapters: AdapterNames

    def __init__(self, args: EngineArgs) -> None:
        self.tokenizer = None
        self.texts = None
        self._args = args
        self._open = OpenRequests(None, self._abort)
        self._replicas = Replicas(
            args,
            on_news=lambda news: self._open.take(news),
            on_reply=lambda reply: self.control.take(reply),
            on_death=self._take_death,
            on_start=self._take_start,
        )
        self.control = EngineControl(self._replicas)
        self._is_stopping = False

    @classmethod
    async def start(cls, args: EngineArgs, *, timeout: float = 600.0) -> AsyncEngine:
        """Start the engine process and wait until it is ready, for `timeout` seconds at most.

        Raises:
            EngineStartError: with the cause.
            ConfigError, CheckpointError, TokenizerError: one line that says what is wrong with settings or model.
        """
        engine = cls(args)
        try:
            async with asyncio.timeout(timeout):
                await engine._start()
        except BaseException as error:
            await engine.shutdown()
            if isinstance(error, TimeoutError):
                raise EngineStartError(f"the engine was not ready within {timeout:g} s") from None
            raise
        return engine

    async def restart(self, *, timeout: float = 600.0) -> None:
        """Start engines anew that have died; until then requests are refused, unless another engine serves.

        Raises:
            EngineStartError: it could not start.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._replicas.restart()
        except TimeoutError:
            raise EngineStartError(f"the engine was not ready again within {timeout:g} s") from None

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter: str = "",
    ) -> RequestStream:
        """News of all ``n`` samples until each is finished; `RequestOutput.index` tells which. Closing it aborts.

        The request is checked here, at the call, not at the first iteration.

        Raises:
            InvalidRequestError: before anything reaches the engine. With code "queue_full" too many requests wait
                already: try again later.
            EngineAsleepError: the engine sleeps.
            EngineDeadError: where the engine is already dead. If it dies later, each sample gets an output with
                finish_reason "error".
        """
        about = {"priority": priority, "cache_salt": cache_salt, "tenant": tenant, "adapter": adapter}
        return self.submit([prompt_token_ids], sampling_params, **about)

    def embed(
        self,
        prompt_token_ids: Sequence[int],
        pooling: PoolingKind | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter: str = "",
    ) -> RequestStream:
        """The embedding of a prompt, as a `RequestOutput` with `embedding`. Without `pooling` it is the model's own.

        Raises:
            InvalidRequestError, EngineDeadError: as `generate`.
        """
        wanted = self.embedding_model.choose_pooling(pooling)
        about = {"priority": priority, "cache_salt": cache_salt, "tenant": tenant, "adapter": adapter}
        return self.submit([prompt_token_ids], wanted, **about)

    def submit(
        self,
        prompts: Sequence[Sequence[int]] | CheckedPrompts,
        wanted: SamplingParams | Pooling,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter: str = "",
    ) -> RequestStream:
        """One stream for several prompts, all of which are checked before any of them runs.

        Args:
            prompts: token ids of each, or what `check_prompts` gave for them.
            wanted: how to generate, as `generate`, or how to make embeddings, as `embed`.
            tenant: who asks. Tenants that wait for each other have equal shares of the engine, and each leaves
                room in the queue to others.
            adapter: the name of the adapter that computes them; "" for the model without one.

        Returns news of each by its `request_id`: `RequestStream.request_ids` has them in the order of the prompts.

        Raises:
            InvalidRequestError, EngineDeadError: as `generate`.
        """
        self.check_health()
        self.control.check_awake()
        n = wanted.n if isinstance(wanted, SamplingParams) else 1
        given = prompts.token_ids if isinstance(prompts, CheckedPrompts) else prompts
        num_tokens = sum(len(prompt) for prompt in given if isinstance(prompt, Sequence))
        self.check_room(len(given), n if isinstance(n, int) else 1, num_tokens=num_tokens, tenant=tenant)
        inputs = {"priority": priority, "cache_salt": cache_salt, "tenant": tenant}
        inputs["adapter_id"] = self.adapters.id_of(adapter)
        if isinstance(wanted, Pooling):
            submission = self._inputs.process_embedding(prompts, wanted, **inputs)
        else:
            submission = self._inputs.process(prompts, wanted, **inputs)
            self._inputs.check_num_logprobs(submission)
        dispatch = self._replicas.route(submission)
        stream = self._open.add(submission, [route.rank for route in dispatch.routes])
        self._replicas.send(dispatch)
        return stream

    def check_room(self, num_prompts: int, n: int = 1, *, num_tokens: int = 0, tenant: str = "") -> None:
        """Raise unless `n` samples of each of so many prompts could be queued now; admitted ones are not touched.

        `submit` asks this first. Who takes memory for each sample before that should ask it before.

        Args:
            num_tokens: prompt tokens of all prompts together, as far as they are known.

        Raises:
            InvalidRequestError: with code "queue_full" try again later; other codes mean that it could never be.
        """
        wanted = Load(num_samples=num_prompts * n, num_tokens=num_tokens)
        own = self._open.load_of(tenant) if tenant else None
        self.queue_limits.check(wanted, open_load=self._open.load, own_load=own, n=n)

    async def prepare(self, sampling_params: SamplingParams) -> SamplingParams:
        """Do the slow work on a request's parameters beside the event loop; `submit` and `generate` take the result.

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

    async def check_prompts(
        self,
        prompts: Sequence[Sequence[int]],
        num_first_tokens: Sequence[int] = (),
        images: Sequence[Sequence[Image]] = (),
    ) -> CheckedPrompts:
        """Check the token ids and pictures of prompts beside the event loop; `submit` takes the result.

        Args:
            num_first_tokens, images: see `InputProcessor.check_prompts`.

        Raises:
            InvalidRequestError: one of them is no prompt of this model.
        """
        num_tokens = sum(map(len, prompts))
        check = partial(self._inputs.check_prompts, prompts, num_first_tokens, images)
        return await beside_the_loop(check, num_tokens=num_tokens)

    async def check_token_ids(self, prompts: Sequence[Sequence[object]], *, name: str) -> None:
        """Check the ids of prompts that will be cut, beside the event loop; `name` is the field that has them.

        Raises:
            InvalidRequestError: one of them is no token id of this model.
        """

        def check() -> None:
            for prompt in prompts:
                check_prompt_ids(prompt, self.info.vocab_size, name=name)

        await beside_the_loop(check, num_tokens=sum(map(len, prompts)))

    async def load_adapter(self, name: str, folder: str) -> NamedAdapter:
        """Read an adapter of a folder that PEFT saved; requests may name it once this returns.

        Raises:
            AdapterError: it cannot be served, or the name or all places are taken.
        """
        adapter = await asyncio.to_thread(self.adapters.prepared, name, folder)
        return await self._load_adapter(adapter)

    async def unload_adapter(self, name: str) -> None:
        """Take no further request for an adapter; it leaves the memory once those that are open have ended.

        Raises:
            AdapterError: nothing is called so.
        """
        await self.control.unload_adapter(self.adapters.remove(name).id)

    async def abort(self, stream: RequestStream) -> None:
        """End the open samples of a stream: each gets finish_reason "abort", then the stream ends."""
        if open_ids := self._open.open_ids(stream.request_ids):
            self._replicas.abort(open_ids)

    async def start_profile(self) -> None:
        """Start tracing in the engine process; ProfilerError says what to set where no directory was given."""
        await self.control.profile(start=True)

    async def stop_profile(self) -> None:
        """Stop tracing and write the traces."""
        await self.control.profile(start=False)

    async def sleep(self, level: int = 1) -> None:
        """End what is open, forget what is cached, and give back the memory of the cache and of the weights.

        Until `wake_up` requests are refused with EngineAsleepError.

        Args:
            level: at 1 the host keeps the weights, at 2 they are read anew when the engine is woken up.

        Raises:
            EngineBusyError: the engine sleeps already.
        """
        await self.control.sleep(level, end_open=self._end_open)

    async def wake_up(self) -> None:
        """Take requests again after `sleep`. Tokens are those of before."""
        await self.control.wake_up()

    def give_up(self) -> None:
        """Every open sample ends here with finish_reason "abort", whether the engine answers or not."""
        self._open.end_all("abort")

    def check_health(self) -> None:
        """Raise EngineDeadError unless an engine's process lives and makes progress."""
        self._replicas.check_health()

    @property
    def is_recovering(self) -> bool:
        """Whether one of several engines has died and is being started anew, so that no death is final yet."""
        return self._replicas.is_recovering

    @property
    def code_that_ran(self) -> tuple[str, ...] | None:
        """Files of the model's folder whose code ran at start; None where `trust_remote_code` is off."""
        return code_that_ran(self.info.model_path) if self._args.trust_remote_code else None

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """How each engine does, by its rank."""
        return self._replicas.engines

    @property
    def stats(self) -> StepStats | None:
        """Counts of all engines after their last steps; None before the first news."""
        known = [engine.stats for engine in self.engines if engine.stats is not None]
        return total_stats(known) if known else None

    @property
    def num_restarts(self) -> int:
        """How often engines were started anew."""
        return sum(engine.num_restarts for engine in self.engines)

    @property
    def pid(self) -> int | None:
        """The id of the first engine's process; None before it starts."""
        return self.engines[0].pid

    @property
    def folder(self) -> str:
        """Private folder with the sockets to the first engine's process."""
        return self._replicas.folder

    @property
    def num_unfinished_requests(self) -> int:
        """Samples that have not finished."""
        return self._open.num_samples

    async def shutdown(self, drain_timeout: float = 0.0) -> None:
        """Let requests finish for `drain_timeout` seconds, abort the rest, end the process, remove its files."""
        if self._is_stopping:
            return
        if drain_timeout > 0 and self._replicas.serving:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._open.wait_until_idle(), drain_timeout)
        self._is_stopping = True
        self._open.end_all("abort")
        if self.texts is not None:
            self.texts.close()
        await self._replicas.stop()

    async def _start(self) -> None:
        started = time.perf_counter()
        checkpoint = await asyncio.to_thread(open_model, self._args)
        self.adapters, at_start = await asyncio.to_thread(AdapterNames.of, self._args, checkpoint)
        self._replicas.spawn(checkpoint.path)
        self.tokenizer = await asyncio.to_thread(open_tokenizer, self._args, checkpoint)
        if self.tokenizer is not None:
            self.texts = await asyncio.to_thread(TextThreads, self.tokenizer)
        await self._replicas.wait_until_ready()
        info = self._replicas.infos[0]
        self.embedding_model = EmbeddingModel.read(info.model_path, self.adapters.tasks)
        self.judging = await asyncio.to_thread(Judging.of, checkpoint, self._args.model)
        why_no_text = await asyncio.to_thread(lambda: checkpoint.why_no_text)
        self._inputs = InputProcessor.of_engine(info, self._args, self.tokenizer, why_no_text=why_no_text)
        self._open = OpenRequests(self.tokenizer, self._abort)
        for adapter in at_start:
            await self._load_adapter(adapter)
        self._started_within = time.perf_counter() - started
        self._take_infos()

    def _take_infos(self) -> None:
        """Engines work, or one less does. The cache of one that was started anew may have another size."""
        if not (infos := self._replicas.infos):
            return
        timings = {**infos[0].timings, "total": self._started_within}
        max_model_len = min(info.max_model_len for info in infos)
        self.info = msgspec.structs.replace(infos[0], max_model_len=max_model_len, timings=timings)
        self._inputs.limits = replace(self._inputs.limits, max_model_len=max_model_len)
        self.queue_limits = QueueLimits.of(
            sum(info.max_num_seqs for info in infos),
            sum(info.num_blocks * info.block_size for info in infos),
            samples=self._args.max_num_queued_requests,
            tokens=self._args.max_num_queued_tokens,
        )

    async def _load_adapter(self, adapter: NamedAdapter) -> NamedAdapter:
        self.adapters.reserve(adapter)
        try:
            await self.control.load_adapter(adapter)
        except BaseException:
            self.adapters.release(adapter)
            raise
        self.adapters.add(adapter)
        return adapter

    async def _end_open(self) -> None:
        self._replicas.abort(self._open.all_ids())
        await self._open.wait_until_idle()

    def _abort(self, sample_ids: list[str]) -> None:
        """Nobody waits for these samples any more."""
        self._replicas.abort(sample_ids)

    def _take_start(self, rank: int) -> None:
        """An engine was started anew."""
        self.control.engine_started(rank)
        self._take_infos()

    def _take_death(self, death: EngineDeath) -> None:
        """An engine died: what it had ends with "error"."""
        self.control.engine_died(death)
        self._open.take(death.last_news())
        self._take_infos()
