"""The engines, each with dummy weights, the same limits and the same calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from benchmarks.picture_prompts import PicturePrompt

MAX_NUM_SEQS = 256
MAX_BATCHED_TOKENS = 16384
MEMORY_SHARE = 0.85
# Tokens that a request may be ahead of another whose prompt is computed after its own.
HEAD_START = 64
# A setting of benchmarks alone: a GPU's worker is a rank in a process of its own, as with several GPUs.
RANK_PROCESS = "rank_process"


class Parallel(NamedTuple):
    """How an engine is spread over GPUs, in the words of both."""

    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False


class Atom:
    """`LLMEngine` in this process."""

    name = "atom"

    def __init__(
        self, model: Path, *, max_model_len: int, prefix_caching: bool, parallel: Parallel, settings: dict[str, Any]
    ) -> None:
        from atom_core import EngineArgs, LLMEngine, __version__
        from atom_core.executor.factory import make_executor

        self.version = __version__
        settings = dict(settings)
        executor = rank_process if settings.pop(RANK_PROCESS, False) else make_executor
        limits = {
            "max_model_len": max_model_len,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": MAX_BATCHED_TOKENS,
            "gpu_memory_utilization": MEMORY_SHARE,
        }
        args = EngineArgs.from_keywords(
            model=str(model),
            load_dummy=True,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enable_prefix_caching=prefix_caching,
            **parallel._asdict(),
            **(limits | settings),
        )
        self._engine = LLMEngine.from_args(args, executor)
        info = self._engine.info
        self.cache_tokens = info.num_blocks * info.block_size // info.num_groups

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        params = [self._params(count, temperature) for count in max_tokens]
        outputs = self._engine.generate(prompts, params, use_tqdm=False)
        _check([len(output["token_ids"]) for output in outputs], max_tokens)

    def closed_loop(
        self, prompts: Sequence[list[int]], max_tokens: Sequence[int], in_flight: int, temperature: float
    ) -> None:
        def add(prompt: list[int], count: int) -> None:
            self._engine.add_request([prompt], self._params(count, temperature))

        run_closed_loop(prompts, max_tokens, in_flight, add, lambda: len(self._engine.step()))

    def first_token(self, prompt: PicturePrompt) -> None:
        [output] = self._engine.generate([prompt.as_ours()], self._params(1, 0.0), use_tqdm=False)
        _check([len(output["token_ids"])], [1])

    def arrivals(self, prompts: Sequence[list[int]], num_tokens: int, temperature: float) -> list[float]:
        counts: dict[str, int] = {}

        def step() -> dict[str, int]:
            counts.clear()
            self._engine.step()
            return counts

        def follow(output: Any) -> None:
            counts[output.request_id] = output.num_output_tokens

        params = self._params(num_tokens + HEAD_START, temperature)
        names = [self._engine.add_request([prompt], params, stream_callback=follow)[0] for prompt in prompts]
        times = arrivals_of(names, num_tokens, step)
        self._engine.abort(names)
        return times

    def _params(self, num_tokens: int, temperature: float) -> Any:
        from atom_core import SamplingParams

        return SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True)


def rank_process(config: Any) -> Any:
    """An executor whose only rank is a process that exchanges with nobody, by the library for several."""
    from atom_core.executor.processes.executor import ProcessExecutor

    return ProcessExecutor(config)


class Vllm:
    """`vllm.LLM` in this process, as it comes: compiled, with full and piecewise graphs."""

    name = "vllm"

    def __init__(
        self, model: Path, *, max_model_len: int, prefix_caching: bool, parallel: Parallel, settings: dict[str, Any]
    ) -> None:
        import vllm  # pyright: ignore[reportMissingImports]

        given = " ".join(f"{name}={value}" for name, value in settings.items())
        self.version = f"{vllm.__version__} with {given}" if given else vllm.__version__
        self._sampling_params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=str(model),
            load_format="dummy",
            max_model_len=max_model_len,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=prefix_caching,
            **parallel._asdict(),
            **(_reading_of(model) | settings),
        )
        self._llm.apply_model(fill_as_ours)
        cache = self._llm.llm_engine.vllm_config.cache_config
        self.cache_tokens = cache.num_gpu_blocks * cache.block_size
        self._num_requests = 0

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        params = [self._params(count, temperature) for count in max_tokens]
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        _check([len(output.outputs[0].token_ids) for output in outputs], max_tokens)

    def closed_loop(
        self, prompts: Sequence[list[int]], max_tokens: Sequence[int], in_flight: int, temperature: float
    ) -> None:
        engine = self._llm.llm_engine

        def add(prompt: list[int], count: int) -> None:
            self._num_requests += 1
            engine.add_request(
                f"closed-{self._num_requests}", {"prompt_token_ids": prompt}, self._params(count, temperature)
            )

        run_closed_loop(prompts, max_tokens, in_flight, add, lambda: sum(out.finished for out in engine.step()))

    def first_token(self, prompt: PicturePrompt) -> None:
        [output] = self._llm.generate([prompt.as_of_vllm()], self._params(1, 0.0), use_tqdm=False)
        _check([len(output.outputs[0].token_ids)], [1])

    def arrivals(self, prompts: Sequence[list[int]], num_tokens: int, temperature: float) -> list[float]:
        engine = self._llm.llm_engine

        def step() -> dict[str, int]:
            return {output.request_id: len(output.outputs[0].token_ids) for output in engine.step()}

        params = self._params(num_tokens + HEAD_START, temperature)
        names = [f"followed-{self._num_requests + index}" for index in range(len(prompts))]
        self._num_requests += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        times = arrivals_of(names, num_tokens, step)
        while engine.has_unfinished_requests():
            engine.step()
        return times

    def _params(self, num_tokens: int, temperature: float) -> Any:
        return self._sampling_params(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


def _reading_of(model: Path) -> dict[str, Any]:
    """How vLLM reads prompts: token ids, and with a tokenizer, which its processor needs, one picture in each."""
    if not (model / "tokenizer.json").exists():
        return {"skip_tokenizer_init": True}
    return {"limit_mm_per_prompt": {"image": 1, "video": 0}}


def fill_as_ours(model: Any) -> None:
    """Random weights as `load_dummy_weights` gives ours, for a model of vLLM's.

    Its own are so small beside the biases that a router's bias alone would choose, for all tokens the same few experts.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # Numbers of eight bits are drawn as float32.
            drawn = parameter.data if parameter.dtype.itemsize > 1 else parameter.data.float()
            parameter.data.copy_(drawn.normal_(0.0, 0.02))
        else:
            parameter.data.fill_(0.0 if "bias" in name else 1.0)


def run_closed_loop(
    prompts: Sequence[list[int]],
    max_tokens: Sequence[int],
    in_flight: int,
    add: Callable[[list[int], int], None],
    step: Callable[[], int],
) -> None:
    """Give each prompt to `add` while fewer than `in_flight` are unfinished; `step` tells how many it has finished."""
    unfinished = 0
    for prompt, count in zip(prompts, max_tokens, strict=True):
        while unfinished == in_flight:
            unfinished -= step()
        add(prompt, count)
        unfinished += 1
    while unfinished:
        unfinished -= step()


def arrivals_of(names: Sequence[str], num_tokens: int, step: Callable[[], Mapping[str, int]]) -> list[float]:
    """When all of `names` had 1, 2, ... `num_tokens` tokens; `step` tells how many those have that got more.

    Raises:
        RuntimeError: a request had all its tokens before the last one had so many: fewer than all ran at the end.
    """
    counts, times = dict.fromkeys(names, 0), []
    while len(times) < num_tokens:
        counts |= step()
        least = min(counts.values())
        times += [time.perf_counter()] * (least - len(times))
    if max(counts.values()) >= num_tokens + HEAD_START:
        raise RuntimeError("a request ended before the others had their tokens: the timing would mean nothing")
    return times[:num_tokens]


def _check(generated: Sequence[int], wanted: Sequence[int]) -> None:
    if list(generated) != list(wanted):
        raise RuntimeError(f"asked for {sum(wanted)} tokens and got {sum(generated)}: the timing would mean nothing")
