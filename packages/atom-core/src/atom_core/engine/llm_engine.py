"""`LLMEngine`: the engine inside the caller's process, for scripts and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from tqdm import tqdm

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.embedding_model import EmbeddingModel
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.errors import EngineDeadError, InvalidRequestError
from atom_core.engine.info import EngineInfo
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.outputs.completion import Completion
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.engine.startup import open_model, open_tokenizer, resolve
from atom_core.messages import Pooling, RequestOutput, SamplingParams, StepStats, Submission
from atom_core.tokenization import Tokenizer

Prompt = str | Sequence[int]
StreamCallback = Callable[[RequestOutput], Any]


class LLMEngine:
    """Generates text in this process.

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
    def from_args(cls, args: EngineArgs) -> LLMEngine:
        """An engine of settings that exist already."""
        engine = cls.__new__(cls)
        engine._start(args)
        return engine

    def _start(self, args: EngineArgs) -> None:
        self._core: EngineCore | None = None
        checkpoint = open_model(args)
        self.tokenizer: Tokenizer | None = open_tokenizer(args, checkpoint)
        config = resolve(args, checkpoint)
        core = EngineCore(config)
        self._core = core
        self.info: EngineInfo = core.info
        self.embedding_model = EmbeddingModel.read(self.info.model_path)
        self._inputs = InputProcessor.of_engine(self.info, args, self.tokenizer, can_generate=checkpoint.has_head)
        self._outputs = OutputProcessor(self.tokenizer)
        # The samples of each prompt that have not finished, by their indices.
        self._completions: dict[str, dict[int, Completion]] = {}
        self._callbacks: dict[str, StreamCallback] = {}
        self._finished: list[dict[str, Any]] = []

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[dict[str, Any]]:
        """Generate for every prompt, and wait.

        Args:
            prompts: texts or lists of token ids.
            sampling_params: one for all, or one for each.
            use_tqdm: show a progress bar.

        Returns:
            A dict for each prompt, in order (for each of its samples, with ``n`` above 1), with the keys text,
            token_ids, finish_reason ("stop", "length", "abort", "error"), stop_reason, num_tokens_input,
            num_tokens_output, num_cached_tokens, latency, ttft, tpot (seconds), logprobs, prompt_logprobs, error,
            request_id and index.

        Raises:
            InvalidRequestError: before anything is generated.
        """
        return self._run(self.add_request(prompts, sampling_params), use_tqdm=use_tqdm)

    def embed(self, prompts: Prompt | Sequence[Prompt], pooling: Pooling | None = None) -> list[list[float]]:
        """A vector of length 1 for each prompt: the "mean" of the hidden states of its tokens, or the "last", or the
        first ("cls").

        Without `pooling` it is the model's own; "mean" where the model's folder does not say.

        Raises:
            InvalidRequestError: before anything is computed.
            RuntimeError: a prompt failed in the engine.
        """
        core = self._open_core()
        pooling = self.embedding_model.choose_pooling(pooling)
        tokens = [self._encode(prompt) for prompt in _as_prompts(prompts)]
        submission = self._inputs.process_embedding(tokens, pooling)
        _check_fit(core, submission)
        self._queue(core, submission)
        outputs = self._run([prompt.request_id for prompt in submission.prompts], use_tqdm=False)
        for output in outputs:
            if "embedding" not in output:
                raise RuntimeError(f"a prompt could not be embedded: {output['error']}")
        return [output["embedding"] for output in outputs]

    def add_request(
        self,
        prompt_or_tokens_list: Prompt | Sequence[Prompt],
        sampling_params_list: SamplingParams | Sequence[SamplingParams] | None = None,
        stream_callback: StreamCallback | None = None,
    ) -> list[str]:
        """Queue prompts for `step`, and return the id of each.

        Args:
            prompt_or_tokens_list: texts or lists of token ids; a single one is allowed too.
            sampling_params_list: one for all, or one for each.
            stream_callback: called with a `RequestOutput` for every token, from inside `step`.

        Raises:
            InvalidRequestError: nothing is queued then.
        """
        core = self._open_core()
        prompts = _as_prompts(prompt_or_tokens_list)
        pairs = zip(prompts, _one_for_each(sampling_params_list, len(prompts)), strict=True)
        submissions = []
        # What prompts in a row share is checked once.
        for _, group in groupby(pairs, key=lambda pair: id(pair[1])):
            members = list(group)
            params = members[0][1]
            submission = self._inputs.process([self._encode(prompt) for prompt, _ in members], params)
            self._inputs.check_grammar(params)
            _check_fit(core, submission)
            submissions.append(submission)
        request_ids = [prompt.request_id for submission in submissions for prompt in submission.prompts]
        if stream_callback is not None:
            self._callbacks |= dict.fromkeys(request_ids, stream_callback)
        for submission in submissions:
            self._queue(core, submission)
        return request_ids

    def step(self) -> list[dict[str, Any]]:
        """Run one step, and return what finished in it, as `generate` would."""
        finished, self._finished = self._finished, []
        return finished + (self._step() if self._open_core().has_unfinished() else [])

    def is_finished(self) -> bool:
        """Whether everything queued has finished and was returned."""
        return not self._completions and not self._finished

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; nothing more comes of them."""
        sample_ids = []
        for request_id in request_ids:
            sample_ids += self._outputs.close(request_id)
            self._callbacks.pop(request_id, None)
            self._completions.pop(request_id, None)
        self._open_core().abort(sample_ids)

    def start_profile(self) -> None:
        """Begin a trace; ProfilerError says what to set where no folder was given."""
        self._open_core().profile(start=True)

    def stop_profile(self) -> None:
        """End the trace and write it under ``{torch_profiler_dir}/rank_0/``."""
        self._open_core().profile(start=False)

    @property
    def stats(self) -> StepStats:
        """Counts as of now: requests, blocks, preemptions, prefix hits."""
        return self._open_core().stats()

    def print_mtp_statistics(self) -> None:
        """Print how speculative decoding did."""
        print("MTP Statistics: speculative decoding is off, every token was computed by the model itself")

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

    def _open_core(self) -> EngineCore:
        if self._core is None:
            raise EngineDeadError("this engine was closed")
        return self._core

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequestError(
                    "prompt is text, and skip_tokenizer_init left the tokenizer out: give token ids", "prompt"
                )
            return self.tokenizer.encode(prompt)
        return list(prompt)

    def _queue(self, core: EngineCore, submission: Submission) -> None:
        for sample in submission.samples():
            completion = Completion(sample.caller_id, sample.sample_index)
            self._completions.setdefault(sample.caller_id, {})[sample.sample_index] = completion
            self._outputs.add(sample)
            core.add_request(sample)

    def _run(self, request_ids: Sequence[str], *, use_tqdm: bool) -> list[dict[str, Any]]:
        """Step until these have finished; what comes of them, in order. What else finishes waits for `step`."""
        order = {request_id: place for place, request_id in enumerate(request_ids)}
        mine: list[dict[str, Any]] = []
        total = sum(len(self._completions[request_id]) for request_id in request_ids)
        num_tokens, started = 0, time.monotonic()
        try:
            with tqdm(total=total, desc="generating", unit="seq", disable=not use_tqdm, dynamic_ncols=True) as bar:
                while len(mine) < total:
                    finished = self._step()
                    ours = [output for output in finished if output["request_id"] in order]
                    self._finished += [output for output in finished if output["request_id"] not in order]
                    mine += ours
                    num_tokens += sum(output["num_tokens_output"] for output in ours)
                    if ours:
                        speed = num_tokens / max(time.monotonic() - started, 1e-9)
                        bar.set_postfix_str(f"{speed:.1f} tokens/s", refresh=False)
                        bar.update(len(ours))
        except BaseException:
            self.abort(request_ids)
            raise
        return sorted(mine, key=lambda output: (order[output["request_id"]], output["index"]))

    def _step(self) -> list[dict[str, Any]]:
        core = self._open_core()
        processed = self._outputs.process(core.step())
        if processed.stopped_request_ids:
            core.abort(processed.stopped_request_ids)
        finished = []
        for output in processed.outputs:
            samples = self._completions[output.request_id]
            samples[output.index].add(output)
            if output.finished:
                finished.append(samples.pop(output.index).as_dict())
                if not samples:
                    del self._completions[output.request_id]
        called = [
            (self._callbacks[output.request_id], output)
            for output in processed.outputs
            if output.request_id in self._callbacks
        ]
        for _, output in called:
            if output.request_id not in self._completions:
                self._callbacks.pop(output.request_id, None)
        for callback, output in called:  # after the bookkeeping: a callback may raise
            callback(output)
        return finished


def _check_fit(core: EngineCore, submission: Submission) -> None:
    """Raise InvalidRequestError where a prompt could never run."""
    for sample in submission.samples():
        if sample.sample_index == 0 and (reason := core.why_it_cannot_fit(sample)) is not None:
            raise InvalidRequestError(reason, "prompt", "context_length_exceeded")


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and all(isinstance(item, int) for item in prompts)):
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
