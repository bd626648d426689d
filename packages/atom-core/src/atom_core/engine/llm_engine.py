"""`LLMEngine`: the engine inside the caller's process, or several beside it, for scripts and tests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from tqdm import tqdm

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.adapters.names import AdapterNames
from atom_core.engine.embedding_model import EmbeddingModel
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_core.engine.inputs.given_prompts import Given, GivenPrompt
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.validation import check_text, missing_tokenizer
from atom_core.engine.interrupts import interrupts_held
from atom_core.engine.outputs.local_requests import LocalRequests, StreamCallback
from atom_core.engine.replicas.replicated_core import ReplicatedCore
from atom_core.engine.startup import open_model, open_tokenizer, resolve
from atom_core.errors import EngineAsleepError, EngineBusyError, EngineDeadError, InvalidRequestError
from atom_core.executor.factory import MakeExecutor, make_executor
from atom_core.messages import EngineOutput, NamedAdapter, PoolingKind, SamplingParams, StepStats, Submission
from atom_core.settings import torchrun
from atom_core.tokenization import Tokenizer

Prompt = Given
Adapter = str | Sequence[str | None] | None


class LLMEngine:
    """Generates text in this process, or in one for each engine with `data_parallel_size` above 1.

    What an engine of several had that dies finishes with "error"; the others go on, and it is started anew once.

    A call that ends with an exception, Ctrl-C among them, leaves nothing of its own requests in the engine. In the main
    thread Ctrl-C takes effect between steps; a second one takes effect at once.

    The first process of torchrun gets an engine, and all others become its ranks and end with it.

    Args:
        model: folder, .gguf file, Hugging Face id or known name.
        keywords: any field of `EngineArgs`.

    Attributes:
        info: what was resolved at start.
        tokenizer: None with `skip_tokenizer_init`.

    Raises:
        ConfigError, CheckpointError, TokenizerError: one line that says what is wrong with settings or model.
    """

    def __init__(self, model: str, **keywords: Any) -> None:
        self._start(EngineArgs.from_keywords(model=str(model), **keywords))

    @classmethod
    def from_args(cls, args: EngineArgs, executor: MakeExecutor = make_executor) -> LLMEngine:
        """An engine with these settings; `executor` makes what runs its steps."""
        engine = cls.__new__(cls)
        engine._start(args, executor)
        return engine

    def _start(self, args: EngineArgs, executor: MakeExecutor = make_executor) -> None:
        if (process := torchrun()) is not None and process.rank > 0:
            from atom_core.executor.launchers.torchrun import run_torchrun_rank

            # The same program runs in all of torchrun's processes: from here on this one is a rank.
            raise SystemExit(run_torchrun_rank(process, args))
        self._core: EngineCore | ReplicatedCore | None = None
        checkpoint = open_model(args)
        self._adapters, at_start = AdapterNames.of(args, checkpoint)
        self.tokenizer: Tokenizer | None = open_tokenizer(args, checkpoint)
        config = resolve(args, checkpoint)
        self._speculates = config.speculation is not None
        several = args.data_parallel_size > 1
        core = ReplicatedCore(args, checkpoint.path) if several else EngineCore(config, executor(config))
        self._core = core
        self.info: EngineInfo = core.info
        self.embedding_model = EmbeddingModel.read(self.info.model_path, self._adapters.tasks)
        self._inputs = InputProcessor.of_engine(self.info, args, self.tokenizer, why_no_text=checkpoint.why_no_text)
        self._requests = LocalRequests(self.tokenizer)
        for adapter in at_start:
            self._load_adapter(adapter)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        adapter: Adapter = None,
    ) -> list[dict[str, Any]]:
        """Generate for every prompt, and wait.

        Args:
            prompts: texts or lists of token ids, or ``{"prompt": text}`` or ``{"prompt_token_ids": token ids}`` with
                ``"images"``: arrays uint8 ``[height, width, 3]``, pictures of Pillow, or `Image` objects; and
                ``"videos"``: arrays uint8 ``[frames, height, width, 3]``, lists of pictures, or `Video` objects. A text
                has one image or video token for each, as chat templates write it; token ids have a video token for
                each picture of a video (`Video.images`). Where a model has one token for both, ``"images"`` of token
                ids has all pictures in order, those of videos too.
            sampling_params: one for all, or one for each.
            use_tqdm: show a progress bar.
            adapter: the name of the loaded adapter that computes them, one for all or one for each; None is the model
                without one.

        Returns:
            A dict for each prompt, in order (for each of its samples, with ``n`` above 1), with the keys text,
            token_ids, finish_reason ("stop", "length", "abort", "error"), stop_reason, num_tokens_input,
            num_tokens_output, num_cached_tokens, num_draft_tokens, num_accepted_tokens (of speculation), latency, ttft,
            tpot (seconds), logprobs, prompt_logprobs, error, request_id and index.

        Raises:
            InvalidRequestError: before anything is generated.
        """
        return self._run(self._check(prompts, sampling_params, adapter), use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: PoolingKind | None = None,
        *,
        prompt_name: str | None = None,
        task: str | None = None,
    ) -> list[list[float]]:
        """A vector for each prompt: the "mean" of the hidden states of its tokens, or the "last", or the
        first ("cls").

        Without `pooling` it is the model's own; "mean" where the model's folder does not say. Vectors have length 1,
        unless the folder's modules leave them as they are. The model's prompt of that name, or its default, is put
        before texts.

        Args:
            prompts: as those of `generate`; before what has pictures or videos nothing is put. Where a model has an
                encoder for pictures (CLIP), each is a text, or ``{"images": [picture]}``.
            task: what the vectors are for, where the model has adapters for tasks (jina-embeddings-v3); its prompt is
                put before texts unless `prompt_name` names another.

        Raises:
            InvalidRequestError: before anything is computed.
            RuntimeError: a prompt failed in the engine.
        """
        core = self._open_core()
        model = self.embedding_model
        wanted, before = model.choose_pooling(pooling), model.prompt(prompt_name, task)
        texts = [before + prompt if isinstance(prompt, str) else prompt for prompt in _as_prompts(prompts)]
        checked, adapter_id = self._check_prompts(self._given(texts)), self._adapters.id_of(task)
        submission = self._inputs.process_embedding(checked, wanted, adapter_id=adapter_id)
        _check_fit(core, submission)
        outputs = self._run([submission], use_tqdm=False)
        for output in outputs:
            if "embedding" not in output:
                raise RuntimeError(f"a prompt could not be embedded: {output['error']}")
        return [output["embedding"] for output in outputs]

    def add_request(
        self,
        prompt_or_tokens_list: Prompt | Sequence[Prompt],
        sampling_params_list: SamplingParams | Sequence[SamplingParams] | None = None,
        stream_callback: StreamCallback | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        adapter: Adapter = None,
    ) -> list[str]:
        """Queue prompts for `step`, and return the id of each.

        Args:
            prompt_or_tokens_list: as `prompts` of `generate`; a single one is allowed too.
            sampling_params_list: one for all, or one for each.
            stream_callback: called with a `RequestOutput` for every token, from inside `step`.
            priority: -100 to 100; lower goes first.
            tenant: who asks. Tenants that wait for each other have equal shares of the engine.
            adapter: as in `generate`.

        Raises:
            InvalidRequestError: nothing is queued then.
        """
        submissions = self._check(
            prompt_or_tokens_list, sampling_params_list, adapter, priority=priority, tenant=tenant
        )
        request_ids = _request_ids(submissions)
        try:
            self._queue(submissions, stream_callback)
            return request_ids
        except BaseException:
            self.abort(request_ids)
            raise

    def step(self) -> list[dict[str, Any]]:
        """Run one step, and return what finished in it, as `generate` would."""
        if self._open_core().has_unfinished() or self._requests.has_untold:
            self._step()
        return self._requests.take_finished()

    def is_finished(self) -> bool:
        """Whether everything queued has finished and was returned."""
        return self._requests.is_empty

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; nothing more comes of them."""
        core = self._open_core()
        with interrupts_held():
            core.abort(self._requests.drop(request_ids))
            if not self._requests.has_open:  # nobody may ever step again, and steps in flight hold blocks
                self._take(core.settle())

    def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        self._open_core().reset_prefix_cache()

    def load_adapter(self, name: str, folder: str) -> None:
        """Read an adapter of a folder that PEFT saved; prompts may name it once this returns.

        Raises:
            AdapterError: it cannot be served, or the name or all places are taken.
        """
        self._load_adapter(self._adapters.prepared(name, str(folder)))

    def unload_adapter(self, name: str) -> None:
        """Take no further prompt for an adapter; it leaves the memory once those that are open have ended.

        Raises:
            AdapterError: nothing is called so.
        """
        self._open_core().unload_adapter(self._adapters.remove(name).id)

    def sleep(self, level: int = 1) -> None:
        """Forget what is cached, and give back the memory of the cache and of the weights, until `wake_up`.

        Args:
            level: at 1 the host keeps the weights (on a CPU they stay where they are), at 2 they are read anew.

        Raises:
            EngineBusyError: requests are open, or the engine sleeps already.
        """
        if level not in (1, 2):
            raise ValueError(f"level is {level!r}; it must be 1 or 2")
        core = self._open_core()
        if self._requests.has_open:
            raise EngineBusyError("requests are open: finish or abort them before the engine sleeps")
        core.sleep(level)

    def wake_up(self) -> None:
        """Take requests again after `sleep`. Tokens are those of before."""
        self._open_core().wake_up()

    @property
    def is_sleeping(self) -> bool:
        """Whether the engine sleeps, and refuses requests."""
        return self._open_core().is_asleep

    def start_profile(self) -> None:
        """Begin a trace; ProfilerError says what to set where no folder was given."""
        self._open_core().profile(start=True)

    def stop_profile(self) -> None:
        """End the trace and write it under ``{torch_profiler_dir}/``, in a folder for each rank."""
        self._open_core().profile(start=False)

    @property
    def stats(self) -> StepStats:
        """Counts as of now: requests, blocks, preemptions, prefix hits."""
        return self._open_core().stats()

    def print_mtp_statistics(self) -> None:
        """Print how speculative decoding did, by whatever method."""
        if not self._speculates:
            print("MTP Statistics: speculative decoding is off, every token was computed by the model itself")
            return
        stats = self.stats
        rate = stats.num_accepted_tokens / stats.num_draft_tokens if stats.num_draft_tokens else 0.0
        print("MTP Statistics:")
        print(f"  Total draft tokens: {stats.num_draft_tokens}")
        print(f"  Accepted tokens: {stats.num_accepted_tokens}")
        print(f"  Acceptance rate: {rate:.2%}")

    def close(self) -> None:
        """Let go of the model and its memory; the engine cannot be used afterwards."""
        if self._core is not None:
            self._core.close()
            self._core = None
            from atom_core.worker.cache.device_memory import give_memory_back

            give_memory_back()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _load_adapter(self, adapter: NamedAdapter) -> None:
        self._adapters.reserve(adapter)
        try:
            self._open_core().load_adapter(adapter)
        except BaseException:
            self._adapters.release(adapter)
            raise
        self._adapters.add(adapter)

    def _open_core(self) -> EngineCore | ReplicatedCore:
        if self._core is None:
            raise EngineDeadError("this engine was closed")
        return self._core

    def _given(self, prompts: Sequence[Prompt]) -> list[GivenPrompt]:
        return [GivenPrompt.of(prompt, self.info.images, self.tokenizer) for prompt in prompts]

    def _check_prompts(self, given: Sequence[GivenPrompt]) -> CheckedPrompts:
        token_ids = self._encode([prompt.text for prompt in given])
        return self._inputs.check_prompts(token_ids, images=[prompt.images for prompt in given])

    def _encode(self, prompts: Sequence[Any]) -> list[list[int]]:
        """Token ids of each prompt; texts are encoded together, on several threads."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return [list(prompt) for prompt in prompts]
        if self.tokenizer is None:
            raise missing_tokenizer("prompt", "a prompt that is not token ids")
        for text in texts:
            check_text("prompt", text)
        encoded = iter(self.tokenizer.encode_batch(texts))
        return [next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts]

    def _check(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: Adapter,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Submission]:
        """The submissions of checked prompts; raises InvalidRequestError for the first that cannot be served."""
        core = self._open_core()
        if core.is_asleep:
            raise EngineAsleepError("the engine sleeps, and takes no request before it is woken up: call wake_up()")
        prompts = _as_prompts(prompts)
        adapters = [adapter] * len(prompts) if adapter is None or isinstance(adapter, str) else adapter
        if len(adapters) != len(prompts):
            raise InvalidRequestError(f"there are {len(adapters)} adapters for {len(prompts)} prompts", "adapter")
        adapter_ids = [self._adapters.id_of(name) for name in adapters]
        rows = zip(self._given(prompts), _one_for_each(params, len(prompts)), adapter_ids, strict=True)
        submissions = []
        # What prompts in a row share is checked once.
        for _, group in groupby(rows, key=lambda row: (id(row[1]), row[2])):
            members = list(group)
            _, shared, adapter_id = members[0]
            checked = self._check_prompts([prompt for prompt, _, _ in members])
            submission = self._inputs.process(checked, shared, priority=priority, tenant=tenant, adapter_id=adapter_id)
            self._inputs.check_grammar(shared)
            _check_fit(core, submission)
            submissions.append(submission)
        return submissions

    def _queue(self, submissions: Sequence[Submission], callback: StreamCallback | None = None) -> None:
        core = self._open_core()
        with interrupts_held():
            for submission in submissions:
                for sample in submission.samples():
                    self._requests.add(sample, callback)
                core.add(submission)

    def _run(self, submissions: Sequence[Submission], *, use_tqdm: bool) -> list[dict[str, Any]]:
        """Queue these, step until they have finished, and return their outputs in order. Others wait for `step`."""
        request_ids = _request_ids(submissions)
        order = {request_id: place for place, request_id in enumerate(request_ids)}
        mine: list[dict[str, Any]] = []
        total = sum(submission.num_samples for submission in submissions)
        num_tokens, started = 0, time.monotonic()
        try:
            self._queue(submissions)
            with tqdm(total=total, desc="generating", unit="seq", disable=not use_tqdm, dynamic_ncols=True) as bar:
                while len(mine) < total:
                    self._step()
                    if ours := self._requests.take_finished(order):
                        mine += ours
                        num_tokens += sum(output["num_tokens_output"] for output in ours)
                        speed = num_tokens / max(time.monotonic() - started, 1e-9)
                        bar.set_postfix_str(f"{speed:.1f} tokens/s", refresh=False)
                        bar.update(len(ours))
        except BaseException:
            self.abort(request_ids)
            raise
        return sorted(mine, key=lambda output: (order[output["request_id"]], output["index"]))

    def _step(self) -> None:
        """Run one step, keep what finished in it, and call back."""
        core = self._open_core()
        with interrupts_held():
            self._take(core.step())
        self._requests.call_back()  # after the bookkeeping: a callback may raise

    def _take(self, news: list[EngineOutput]) -> None:
        if stopped := self._requests.take(news):
            self._open_core().abort(stopped)


def _request_ids(submissions: Sequence[Submission]) -> list[str]:
    return [prompt.request_id for submission in submissions for prompt in submission.prompts]


def _check_fit(core: EngineCore | ReplicatedCore, submission: Submission) -> None:
    """Raise InvalidRequestError where a prompt could never run: the one that may have the most tokens decides."""
    most = sorted(submission.prompts, key=lambda prompt: len(prompt.token_ids) + max(prompt.max_tokens, 1))[-1:]
    for sample in msgspec.structs.replace(submission, prompts=most).samples():
        if sample.sample_index == 0 and (reason := core.why_it_cannot_fit(sample)) is not None:
            raise InvalidRequestError(reason, "prompt", "context_length_exceeded")


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or (prompts and all(isinstance(item, int) for item in prompts)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(
            f"there are {count} prompts and {len(params)} sampling params: give one, or one for each"
        )
    return list(params)
