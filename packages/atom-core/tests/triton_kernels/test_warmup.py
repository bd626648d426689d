"""After a full warm-up, service launches no kernel that is new to it, and captures nothing."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_core import SamplingParams
from atom_core.config import CompileConfig, EngineArgs, EngineConfig
from atom_core.engine import between_steps
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, Image, PlacedImage, StepStats
from atom_core.worker.model import early_compilation
from atom_core.worker.model_runner import ModelRunner
from atom_kernels.triton.compile_ahead import FilledTensors
from atom_kernels.triton.launch import launches_go_to
from atom_models.vision.spec import VisionSpec
from repeated_work import Repeated

pytest.importorskip("transformers")

GRAPHS = CompileConfig(capture_sizes=(1, 2, 4, 40))
LENGTHS = (1, 2, 7, 15, 16, 17, 31, 40, 63, 64, 65, 100, 129, 200, 255, 300)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
    {"presence_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"allowed_token_ids": [5, 6, 7], "min_tokens": 2},
)


class Recording(ModelRunner):
    """Launches nothing, and remembers what it would have launched, as Triton tells kernels apart."""

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(config, capture=Repeated, **options)
        self.seen: set[Any] = set()
        self.sees = None if config.images is None else config.images.spec

    def compile_prompts(self) -> set[Any]:
        """What is compiled while the model loads."""
        assert self._running is not None
        self.seen = set()
        with self._recorded():
            early_compilation.compile_prompts(self._config, self._running.model)
        return self.seen

    def prepare(self) -> bool:
        with self._recorded():
            return super().prepare()

    def forward(self, step: Any) -> None:
        with self._recorded():
            super().forward(step)

    def sample(self, masks: Any = None) -> Any:
        with self._recorded():
            return super().sample(masks)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        def record(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
            self.seen.add(specialization(kernel, arguments, options))

        with launches_go_to(record), FilledTensors():
            yield


def specialization(kernel: Any, arguments: Sequence[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel for: numbers that are 1 or multiples of 16, aligned pointers, constants."""
    unspecialized = kernel.kwargs.get("do_not_specialize") or ()
    unaligned = kernel.kwargs.get("do_not_specialize_on_alignment") or ()

    def kind(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return str(value.dtype), name in unaligned or value.data_ptr() % 16 == 0
        if isinstance(value, int) and not isinstance(value, bool):
            return "int" if name in unspecialized else "1" if value == 1 else value % 16 == 0
        return type(value).__name__

    return (
        kernel.fn.__qualname__,
        tuple(kind(name, value) for name, value in zip(kernel.arg_names, arguments, strict=False)),
        tuple(sorted((name, str(value)) for name, value in options.items())),
    )


def make_core(
    folder: Path, warmup: Any, graph_mode: Any = "full-and-piecewise", **settings: Any
) -> tuple[EngineCore, Recording]:
    args = EngineArgs(
        model=str(folder), dtype="bfloat16", num_threads=1, max_num_seqs=40, max_num_batched_tokens=256,
        num_kv_blocks=400, max_model_len=512, **settings,
    )  # fmt: skip
    config = resolve(args, open_model(args))
    config = dataclasses.replace(config, compile=dataclasses.replace(GRAPHS, warmup=warmup, graph_mode=graph_mode))
    runner = Recording(config)
    return EngineCore(config, InlineExecutor(runner)), runner


def serve(folder: Path, warmup: str, **settings: Any) -> tuple[set[Any], set[Any], StepStats, int]:
    """The kernels that were known before the first request, those that came later, counts, and late graphs."""
    core, runner = make_core(folder, warmup, **settings)
    known, captured = set(runner.seen), Repeated.captured
    serve_all(core, runner.sees)
    stats = core.stats()
    core.close()
    return known, runner.seen - known, stats, Repeated.captured - captured


def serve_all(core: EngineCore, sees: VisionSpec | None = None) -> None:
    """Requests of all kinds and lengths, alone and many at a time; some with pictures, if the model sees any."""
    draw, stem = random.Random(2), [9] * 64
    waiting = [
        EngineRequest(
            str(number),
            (stem if number % 3 == 0 else []) + [draw.randrange(3, 300) for _ in range(length)],
            SamplingParams(**KINDS[number % len(KINDS)], max_tokens=draw.choice((1, 3, 9)), ignore_eos=True),
        )
        for number, length in enumerate([*LENGTHS, *[5] * 60, *draw.choices(LENGTHS, k=40)])
    ]
    if sees is not None:
        waiting += [with_pictures(str(number), sees, draw) for number in range(1000, 1020)]
        draw.shuffle(waiting)
    while waiting or core.has_unfinished():
        for _ in range(draw.choice((0, 1, 4, 40))):
            if waiting:
                core.add_request(waiting.pop(0))
        for news in core.step():
            assert news.error is None


def with_pictures(name: str, spec: VisionSpec, draw: random.Random) -> EngineRequest:
    """One or two pictures with texts around them; some are seen again, and some begin behind a prefix."""
    tokens, placed = [9] * draw.choice((1, 40)), []
    for seed in draw.sample(range(9), draw.choice((1, 2))):
        height, width = spec.fitted(*draw.choice(((1, 1), (40, 24))))
        pixels = random.Random(seed).randbytes(3 * height * width)
        placed.append(PlacedImage(Image.of(height, width, pixels), len(tokens), spec.num_tokens(height, width)))
        tokens += [*spec.tokens_of(height, width), *[7] * draw.choice((1, 20))]
    return EngineRequest(name, tokens, SamplingParams(temperature=0.0, max_tokens=3), images=tuple(placed))


@pytest.mark.parametrize("family", ["gemma3-seeing", "qwen3_vl"])
def test_steps_with_pictures_are_warmed_up_too(family: str, tiny_family: Callable[[str], Path]) -> None:
    _, later, stats, captured = serve(tiny_family(family), "full")
    assert later == set()
    assert (captured, stats.num_late_captures) == (0, 0)


def test_kernels_of_pictures_whose_tokens_see_each_other_are_compiled_while_the_model_loads(
    tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_compilation, "compile_ahead", lambda work: work())
    found = {}
    for reads_text_alone in (False, True):
        core, runner = make_core(tiny_family("gemma3-seeing"), "none", language_model_only=reads_text_alone)
        found[reads_text_alone] = runner.compile_prompts()
        core.close()
    more = found[False] - found[True]
    assert {name for name, *_ in more} == {"prefill_kernel"}
    assert len(more) == 2  # with a window, and without


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v2", "gpt_oss"])
def test_prompts_of_other_lengths_launch_the_kernels_that_were_compiled_while_the_model_loads(
    family: str, tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_compilation, "compile_ahead", lambda work: work())
    core, runner = make_core(tiny_family(family), "none")
    compiled = set(runner.compile_prompts())
    core.add_request(EngineRequest("40", [5] * 40, SamplingParams(max_tokens=1)))
    core.add_request(EngineRequest("9", [6] * 9, SamplingParams(max_tokens=1)))
    while core.has_unfinished():
        core.step()
    core.close()
    late = {name for name, *_ in runner.seen - compiled}
    assert late.isdisjoint(name for name, *_ in compiled)


def test_linears_of_few_rows_are_compiled_for_prompts_where_requests_are_fewer(
    tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of prompts of 128 tokens have such linears, and the head where log probabilities of prompts are asked for.

    A batch has at most 40 requests here.
    """
    run = []
    monkeypatch.setattr(early_compilation, "compile_ahead", lambda work: work())
    monkeypatch.setattr(
        early_compilation,
        "run_step",
        lambda config, model, lengths, num_logits=None, **rest: run.append((sum(lengths), num_logits)),
    )
    core, _ = make_core(tiny_family("qwen3"), "full")
    core.close()
    assert set(run) >= {(rows, rows) for rows in early_compilation.ROWS_TOLD_APART}


@pytest.mark.parametrize(
    ("family", "graph_mode"),
    [("qwen3", "none"), ("qwen3_moe", "full-and-piecewise")],
)
def test_service_launches_nothing_that_a_full_warm_up_did_not(
    family: str, graph_mode: str, tiny_family: Callable[[str], Path]
) -> None:
    known, later, stats, captured = serve(tiny_family(family), "full", graph_mode=graph_mode)
    assert later == set()
    assert len(known) > 20
    assert (captured, stats.num_late_captures) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks


def test_drafts_are_warmed_up_too(tiny_family: Callable[[str], Path]) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
    _, later, stats, captured = serve(tiny_family("qwen3"), "full", speculative_config=speculation)
    assert stats.num_draft_tokens > 0
    assert (later, captured) == (set(), 0)


def test_without_a_warm_up_requests_wait_for_kernels_and_graphs(tiny_family: Callable[[str], Path]) -> None:
    known, later, stats, captured = serve(tiny_family("qwen3"), "none")
    assert len(later) > len(known)
    assert captured > 0
    assert stats.num_late_captures > 0


def test_in_the_background_all_is_warmed_up_while_a_request_decodes(
    tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_steps, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(between_steps, "PARTS", 1)
    core, runner = make_core(tiny_family("qwen3"), "background")
    captured = Repeated.captured
    core.add_request(EngineRequest("0", [5], SamplingParams(max_tokens=500, ignore_eos=True)))
    while core.is_warming_up and core.has_unfinished():
        core.step()
    assert core.has_unfinished()
    assert Repeated.captured > captured
    assert core.stats().num_late_captures == 0
    known = set(runner.seen)
    core.abort(["0"])
    serve_all(core)
    assert runner.seen == known
    core.close()
