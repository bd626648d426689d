"""What speculation gives and costs on a GPU: engines with drafts and without take turns, at a known acceptance."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.ranks.protocol import WorkerRanks
from benchmarks.gpu.agreeing import draft_bytes, load_agreeing, temperature_for
from benchmarks.gpu.ceilings import measure_ceilings
from benchmarks.gpu.draft_spans import read_drafting
from benchmarks.gpu.models import write_config
from benchmarks.gpu.protocol import Figure, Sizes
from benchmarks.gpu.speculated_work import (
    ACCEPTANCE,
    BEFORE,
    MAX_BATCHED_TOKENS,
    NUM_DRAFTS,
    TIMED,
    max_tokens_for,
    rate_of,
    write_draft_config,
)
from benchmarks.gpu.workloads import random_prompt

PROFILED = 48
# The draft model that is never right, since its dummy weights have nothing to do with the other's.
_SMALL_MODEL = "qwen3-0.6b"
# The engine gives up a draft model after 600 steps in which drafts did not pay.
_STEPS_TO_FIND_OUT = 800

Load = Callable[[EngineConfig, WorkerRanks], EngineModel]
"""Makes a runner's model."""


def speculation_figures(model: Path, sizes: Sizes, *, max_model_len: int, settings: dict[str, Any]) -> Iterator[Figure]:
    """Tokens a second with and without drafts for each batch size, how often drafts were right, and what making them
    takes.

    Args:
        model: a folder with the config of a model whose head is not its embedding.
        settings: what both engines are given.
    """
    config = json.loads((model / "config.json").read_text())
    context, common = min(sizes.contexts), _of_both(sizes, max_model_len) | settings
    temperature = temperature_for(ACCEPTANCE, config["vocab_size"])
    with tempfile.TemporaryDirectory() as name:
        head = write_draft_config(config, Path(name) / "head")
        speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": NUM_DRAFTS}
        drafts = common | {"speculative_config": speculation}
        with contextlib.closing(Side(model, common)) as plain, contextlib.closing(Side(model, drafts)) as drafting:
            for batch_size in sizes.batch_sizes:
                yield from compare((plain, drafting), batch_size, context, temperature, repeats=sizes.repeats)
        # An engine that names its modules records its first steps, so it is none of those that are timed.
        traced = {"torch_profiler_dir": str(Path(name) / "traces"), "mark_trace": True}
        with contextlib.closing(Side(model, drafts | traced)) as drafting:
            seconds = read_drafting(drafting.trace(context, temperature))
        yield making_drafts(seconds, draft_bytes(head, NUM_DRAFTS))


def making_drafts(seconds: Sequence[float], num_bytes: int) -> Figure:
    """What making drafts took in each step, in times of what reading their weights takes."""
    floor = num_bytes / measure_ceilings().copy_bytes_per_second
    about = {"kind": "drafting", "drafts": NUM_DRAFTS, "bytes": num_bytes, "floor_ms": 1e3 * floor}
    return Figure(f"making {NUM_DRAFTS} drafts, over reading their weights", "x", [s / floor for s in seconds], about)


def compare(
    sides: tuple[Side, Side], batch_size: int, context: int, temperature: float, *, repeats: int
) -> Iterator[Figure]:
    """The sides, without drafts and with them, at a known acceptance."""
    before = sides[1].counts()
    speeds = speeds_in_turns(sides, batch_size, context, temperature, repeats=repeats)
    steps, drafted, accepted, late = (after - now for after, now in zip(sides[1].counts(), before, strict=True))
    about = {"batch": batch_size, "context": context, "acceptance": ACCEPTANCE, "drafts": NUM_DRAFTS}
    for way, values in zip(("without drafts", "with drafts"), speeds, strict=True):
        yield Figure(f"speculation, batch {batch_size}: {way}", "tokens/s", values, about | {"kind": way})
    # As few or as many drafts as it found to pay.
    seen = {"rows_with_drafts": steps, "drafted": drafted, "accepted": accepted, "late": late}
    yield Figure(f"speculation, batch {batch_size}: gain", "x", _ratios(speeds), about | {"kind": "speculation"} | seen)


def speeds_in_turns(
    sides: tuple[Side, Side], batch_size: int, context: int, temperature: float, *, repeats: int
) -> tuple[list[float], list[float]]:
    """Tokens a second of each side on the same prompts; the first turn of each is not timed."""
    numbers = random.Random(batch_size)
    speeds: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 1):
        prompts = [random_prompt(numbers, context) for _ in range(batch_size)]
        for side in (0, 1) if number % 2 else (1, 0):
            speed = sides[side].tokens_per_second(prompts, TIMED, temperature)
            if number:
                speeds[side].append(speed)
    return speeds


def _ratios(speeds: tuple[list[float], list[float]]) -> list[float]:
    return [fast / slow for slow, fast in zip(*speeds, strict=True)]


def never_right_figures(model: Path, sizes: Sizes, *, max_model_len: int, settings: dict[str, Any]) -> Iterator[Figure]:
    """What a whole draft model costs that is never right, once the engine has found that out: it no longer follows.

    Nothing for a model of another vocabulary than the draft model's; the arguments are those of `speculation_figures`.
    """
    context, common = min(sizes.contexts), _of_both(sizes, max_model_len) | settings
    with contextlib.ExitStack() as stack:
        small = write_config(_SMALL_MODEL, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        vocabularies = {json.loads((one / "config.json").read_text())["vocab_size"] for one in (model, small)}
        if len(vocabularies) > 1:
            return
        whole = {"method": "draft_model", "model": str(small), "num_speculative_tokens": NUM_DRAFTS}
        # Both have the same weights: a GPU multiplies faster where it multiplies zeros.
        plain, wrong = (
            stack.enter_context(contextlib.closing(Side(model, common | more, load_engine_model)))
            for more in ({}, {"speculative_config": whole})
        )
        prompt = random_prompt(random.Random(0), context)
        for _ in range(-(-_STEPS_TO_FIND_OUT // TIMED)):
            wrong.tokens_per_second([prompt], TIMED, 1.0)
        for batch_size in sizes.batch_sizes:
            speeds = speeds_in_turns((plain, wrong), batch_size, context, 1.0, repeats=sizes.repeats)
            about = {"kind": "never right", "batch": batch_size, "context": context}
            yield Figure(f"a draft model that is never right, batch {batch_size}", "x", _ratios(speeds), about)


def _of_both(sizes: Sizes, max_model_len: int) -> dict[str, Any]:
    """Settings of the two engines that are compared."""
    most, longest = max(sizes.batch_sizes), min(sizes.contexts) + max_tokens_for(TIMED)
    return {
        "max_model_len": max_model_len,
        "max_num_seqs": most,
        "max_num_batched_tokens": min(MAX_BATCHED_TOKENS, max_model_len),
        "num_kv_blocks": most * -(-longest // 16),
    }


class Side:
    """An engine of ours; its model and its EAGLE-3 head, where it has one, agree as `load_agreeing` makes them."""

    def __init__(self, model: Path, settings: dict[str, Any], load: Load = load_agreeing) -> None:
        from atom_core import EngineArgs, LLMEngine
        from atom_core.executor import InlineExecutor
        from atom_core.worker.model_runner import ModelRunner

        common = {"load_dummy": True, "skip_tokenizer_init": True, "enable_prefix_caching": False}
        args = EngineArgs.from_keywords(model=str(model), **common | settings)
        self._engine = LLMEngine.from_args(args, lambda config: InlineExecutor(ModelRunner(config, load)))
        self._traces = Path(settings.get("torch_profiler_dir", ""))

    def close(self) -> None:
        self._engine.close()

    def counts(self) -> tuple[int, int, int, int]:
        """Rows that had drafts, their drafts, those that were right, and what was captured or compiled late."""
        stats = self._engine.stats
        late = stats.num_late_captures + stats.num_late_compilations
        return stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, late

    def tokens_per_second(self, prompts: Sequence[list[int]], num_tokens: int, temperature: float) -> float:
        """What all requests get while all of them run, measured over so many tokens of each on the average."""
        with self._running(prompts, max_tokens_for(num_tokens), temperature) as counts:
            return rate_of(counts, self._engine.step, num_tokens)

    def trace(self, context: int, temperature: float) -> Path:
        """The trace of some steps of one request."""
        prompt = random_prompt(random.Random(0), context)
        with self._running([prompt], max_tokens_for(TIMED), temperature) as counts:
            self._step_until(lambda: min(counts.values()) >= BEFORE)
            self._engine.start_profile()
            self._step_until(lambda: min(counts.values()) >= BEFORE + PROFILED)
            self._engine.stop_profile()
        return next(self._traces.glob("rank_0/*.gz"))

    @contextlib.contextmanager
    def _running(self, prompts: Sequence[list[int]], max_tokens: int, temperature: float) -> Iterator[dict[str, int]]:
        """Requests, and how many tokens each has."""
        from atom_core import SamplingParams

        counts: dict[str, int] = {}

        def follow(output: Any) -> None:
            counts[output.request_id] = output.num_output_tokens

        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
        names = self._engine.add_request(prompts, params, stream_callback=follow)
        counts |= dict.fromkeys(names, 0)
        try:
            yield counts
        finally:
            self._engine.abort(names)

    def _step_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._engine.step()
