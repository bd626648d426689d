"""Towers whose attention runs in Triton: captured, they see what they see without graphs, and engines capture them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atom_core import SamplingParams
from atom_core.config import CompileConfig, EngineArgs
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.inputs.placed_images import place_images
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, Image
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.vision import tower_graphs
from atom_core.worker.vision.tower_graphs import TowerGraphs
from atom_core.worker.warmup import factory
from atom_models import load_model
from repeated_work import Repeated
from tiny_pictures import picture

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_graphs, "SIZES", (48, 128))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3-seeing"])
def test_rows_and_runs_of_nobody_change_nothing(family: str, tiny_family: Callable[[str], Path]) -> None:
    tower = load_model(tiny_family(family), "float32", progress=False).model.vision
    assert tower.plan.backend == "triton"
    graphs = TowerGraphs(tower, tower_graphs.tower_sizes(tower, 128), Repeated)
    while graphs.capture_next():
        pass
    for sizes in ([(24, 24)], [(24, 24)] * 2):
        pictures = [picture(*tower.spec.fitted(*size), seed) for seed, size in enumerate(sizes)]
        assert graphs._buffers is not None
        with torch.inference_mode():
            graphs._buffers.rows.fill_(3.0)
        replayed = Repeated.replayed
        for ours, theirs in zip(graphs.encode(pictures), tower.encode(pictures), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        assert Repeated.replayed == replayed + 1


@pytest.fixture(scope="module")
def tokens_on_the_host(tiny_family: Callable[[str], Path]) -> list[list[int]]:
    return tokens_of(tiny_family("gemma3-seeing"), None)


def tokens_of(folder: Path, compiled: CompileConfig | None) -> list[list[int]]:
    """What is written behind pictures; without `compiled` by a host, which has no graphs.

    The first tokens show what the prompt saw, the third one what is left of it in the cache.
    """
    args = EngineArgs(
        model=str(folder), dtype="float32", num_threads=1, max_num_seqs=2, max_num_batched_tokens=64, num_kv_blocks=64
    )
    config = resolve(args, open_model(args))
    if compiled is not None:
        config = dataclasses.replace(config, compile=compiled)
    core = EngineCore(config, InlineExecutor(ModelRunner(config, capture=None if compiled is None else Repeated)))
    assert core.info.images is not None
    spec, found = core.info.images, [[], []]
    for number in range(2):
        height, width = spec.fitted(24, 24)
        shown = Image.of(height, width, bytes([50 + 99 * number, 7, 200]) * (height * width))
        placed = place_images([5, spec.image_token_id, 6], [shown], spec)
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        core.add_request(EngineRequest(str(number), placed.token_ids, params, images=placed.images))
    while core.has_unfinished():
        for news in core.step():
            assert news.error is None
            found[int(news.request_id)] += news.new_token_ids
    core.close()
    return found


@pytest.mark.parametrize(("mode", "is_replayed"), [("full", True), ("none", False)])
def test_an_engine_captures_its_tower_and_writes_the_same(
    mode: str,
    is_replayed: bool,
    tiny_family: Callable[[str], Path],
    tokens_on_the_host: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed: list[int] = []
    fill = TowerGraphs._fill
    monkeypatch.setattr(TowerGraphs, "_fill", lambda self, step, size: replayed.append(size) or fill(self, step, size))
    # A warm-up captures, and runs no steps of nobody: they took nine tenths of the time, and show nothing of a tower.
    monkeypatch.setattr(factory, "step_variants", lambda *_: [])
    folder = tiny_family("gemma3-seeing")
    compiled = CompileConfig(graph_mode=mode, capture_sizes=(2,), warmup="full")  # type: ignore[arg-type]
    assert tokens_of(folder, compiled) == tokens_on_the_host
    assert bool(replayed) == is_replayed
