"""Captured steps of requests with pictures: their positions are read from a buffer, and give the tokens of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom_core import SamplingParams
from atom_core.config import CompileConfig, EngineArgs
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.inputs.placed_images import place_images
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest
from atom_core.worker.graphs.piece_graphs import PieceGraphs
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.model_runner import ModelRunner
from atom_kernels.mixers import MixerPlan
from atom_kernels.platform import gather_facts, platform_from_facts, use_platform
from repeated_work import Repeated
from seeing_models import around, make_seeing, picture

pytest.importorskip("transformers")

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
CompileModes = ("piecewise", "full-and-piecewise")


@pytest.fixture(autouse=True)
def attention_that_cannot_be_captured() -> Iterator[None]:
    """No Triton for the model: its attention reads lengths on the host."""
    with use_platform(platform_from_facts(dataclasses.replace(gather_facts(), triton_interpret=False))):
        yield


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing(tmp_path_factory.mktemp("seeing"))


def run(folder: Path, mode: str | None, speculation: dict[str, object] | None) -> dict[str, list[int]]:
    """Tokens of requests with small pictures at their beginnings, and of texts, that come one a step."""
    args = EngineArgs(
        model=str(folder), dtype="float32", num_threads=1, max_num_seqs=8, max_num_batched_tokens=64,
        num_kv_blocks=64, speculative_config=speculation,
    )  # fmt: skip
    config = resolve(args, open_model(args))
    runner = ModelRunner(config)
    if mode is not None:
        config = dataclasses.replace(config, compile=CompileConfig(graph_mode=mode, capture_sizes=(2, 8)))
        runner = ModelRunner(config, capture=Repeated)
    core = EngineCore(config, InlineExecutor(runner))
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    waiting = []
    parts = [([7],), ([9] * 20,), (picture(1), [5]), (picture(2, 4, 4), [3, 4] * 20), (picture(1), [6, 7]), ([8],)]
    for number, each in enumerate(parts):
        placed = place_images(*around(*each), core.info.images)
        waiting.append(EngineRequest(str(number), placed.token_ids, params, images=placed.images))
    tokens: dict[str, list[int]] = {request.request_id: [] for request in waiting}
    while waiting or core.has_unfinished():
        if waiting and (not tokens["0"] or len(tokens["0"]) > 2 or len(waiting) == len(tokens)):
            core.add_request(waiting.pop(0))
        for news in core.step():
            assert news.error is None
            tokens[news.request_id] += news.new_token_ids
    core.close()
    return tokens


@pytest.mark.parametrize("mode", CompileModes)
@pytest.mark.parametrize("speculation", [None, NGRAM], ids=["no drafts", "drafts"])
def test_captured_steps_give_the_tokens_of_the_host(
    seeing: Path, mode: str, speculation: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(seeing, None, speculation)
    replays: list[str] = []
    for graphs, name in ((StepGraphs, "replay_model"), (PieceGraphs, "replay")):
        replay = getattr(graphs, name)
        monkeypatch.setattr(graphs, name, lambda *args, replay=replay: replays.append("") or replay(*args))
    if mode != "piecewise":
        monkeypatch.setattr(MixerPlan, "capturable", True)
    Repeated.reset()
    assert run(seeing, mode, speculation) == expected
    assert len(replays) > 20
