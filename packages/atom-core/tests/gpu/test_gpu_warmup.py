"""On a GPU: after a full warm-up no step waits for a compiler, and no way to warm up changes a token."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.engine import between_steps
from atom_core.messages import Image
from atom_core.worker.vision import tower_graphs
from atom_core.worker.vision.tower_graphs import TowerGraphs
from atom_models.vision.towers.step import TowerStep

pytest.importorskip("transformers")

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Any] = {"num_kv_blocks": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_k": 9, "top_p": 0.8},
    {"temperature": 0.0, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.0, "allowed_token_ids": [5, 6, 7], "min_tokens": 1},
)


def served(engine: LLMEngine) -> list[list[int]]:
    """Tokens of prompts of many lengths and kinds of sampling, of which every third begins as others do; twice."""
    draw, stem = random.Random(2), [9] * 64
    prompts = [
        (stem if number % 3 == 0 else [])
        + [draw.randrange(3, 300) for _ in range(draw.choice((1, 3, 9, 17, 33, 65, 120)))]
        for number in range(150)
    ]
    params = [
        SamplingParams(**KINDS[number % len(KINDS)], max_tokens=draw.choice((1, 3, 9, 30)), ignore_eos=True)
        for number in range(len(prompts))
    ]
    tokens = []
    for _ in range(2):
        outputs: list[dict[str, Any]] = engine.generate(prompts, params, use_tqdm=False)
        assert [output["error"] for output in outputs] == [None] * len(outputs)
        tokens += [output["token_ids"] for output in outputs]
    return tokens


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "deepseek_v2", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("eager", [False, True])
def test_after_a_full_warm_up_no_step_waits_for_a_compiler(
    family: str, eager: bool, tiny_family: Callable[[str], Path]
) -> None:
    folder = str(tiny_family(family))
    with LLMEngine(folder, dtype="bfloat16", warmup="full", enforce_eager=eager, **OPTIONS) as engine:
        served(engine)
        stats = engine.stats
    assert (stats.num_late_compilations, stats.num_late_captures) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("family", ["gemma3-seeing", "qwen3_vl"])
def test_neither_does_a_step_with_pictures(family: str, tiny_family: Callable[[str], Path]) -> None:
    with LLMEngine(str(tiny_family(family)), dtype="bfloat16", warmup="full", **OPTIONS) as engine:
        spec, draw = engine.info.images, random.Random(5)
        assert spec is not None
        prompts: list[Any] = []
        for number in range(12):
            height, width = spec.fitted(*draw.choice(((1, 1), (40, 24))))
            shown = Image.of(height, width, draw.randbytes(3 * height * width))
            tokens = [*[9] * draw.choice((1, 40)), spec.image_token_id, *[7] * draw.choice((1, 20))]
            prompts += [{"prompt_token_ids": tokens, "images": [shown]}, [5] * (1 + number)]
        outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=4), use_tqdm=False)
        assert [output["error"] for output in outputs] == [None] * len(outputs)
        stats = engine.stats
    assert (stats.num_late_compilations, stats.num_late_captures) == (0, 0)


@pytest.mark.parametrize("family", ["gemma3-seeing", "qwen2_5_vl", "qwen3_vl"])
def test_towers_in_graphs_give_the_features_of_towers_without(
    family: str, tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiny models have no more patches than that.
    monkeypatch.setattr(tower_graphs, "SIZES", (64, 128, 256, 512, 1024))
    replayed: list[int] = []
    fill = TowerGraphs._fill

    def count(graphs: TowerGraphs, step: TowerStep, size: int) -> None:
        replayed.append(size)
        fill(graphs, step, size)

    monkeypatch.setattr(TowerGraphs, "_fill", count)
    found = {}
    for mode in ("none", "full"):
        settings = OPTIONS | {"cudagraph_mode": mode, "image_cache_memory": 0}
        with LLMEngine(str(tiny_family(family)), dtype="float32", warmup="full", **settings) as engine:
            spec, draw = engine.info.images, random.Random(7)
            assert spec is not None
            prompts: list[Any] = []
            for _ in range(9):
                height, width = spec.fitted(*draw.choice(((1, 1), (40, 24), (24, 60))))
                shown = Image.of(height, width, draw.randbytes(3 * height * width))
                prompts.append({"prompt_token_ids": [9, spec.image_token_id, 7], "images": [shown]})
            replayed.clear()
            found[mode] = [*engine.embed(prompts, "mean"), *(engine.embed(one, "mean")[0] for one in prompts)]
            assert bool(replayed) == (mode == "full")
    for graphs, plain in zip(found["full"], found["none"], strict=True):
        assert graphs == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v2", "qwen3_next"])
def test_no_warm_up_changes_a_token(
    family: str, tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_steps, "LEAST_SECONDS", 0.0)
    folder, found = str(tiny_family(family)), {}
    for warmup in ("none", "full", "background"):
        # A captured step has rows of padding, and cuBLAS rounds otherwise for another number of rows.
        with LLMEngine(folder, dtype="float32", warmup=warmup, batch_invariant=True, **OPTIONS) as engine:
            found[warmup] = served(engine)
    assert found["full"] == found["none"]
    assert found["background"] == found["none"]
