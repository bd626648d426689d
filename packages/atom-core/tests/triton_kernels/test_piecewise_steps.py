"""An engine whose steps run in pieces around attention gives the tokens of one that takes them on the host."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from atom_core import SamplingParams
from atom_core.config import CompileConfig, EngineArgs
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, StepStats
from atom_core.worker.graphs.piece_graphs import PieceGraphs
from atom_core.worker.graphs.shapes import MOST_WHOLE, PROMPT_REQS, GraphShape
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_kernels.mixers import MixerPlan
from atom_kernels.platform import gather_facts, platform_from_facts, use_platform
from repeated_work import Repeated
from tiny_models import make_tiny_llama

pytest.importorskip("transformers")

NUM_REQUESTS, NUM_SEQS = 26, 20
PIECES = CompileConfig(graph_mode="piecewise", capture_sizes=(4, NUM_SEQS))
BOTH = dataclasses.replace(PIECES, graph_mode="full-and-piecewise")


@pytest.fixture(autouse=True)
def attention_that_cannot_be_captured() -> Iterator[None]:
    """No Triton for the model: its attention reads lengths on the host."""
    with use_platform(platform_from_facts(dataclasses.replace(gather_facts(), triton_interpret=False))):
        yield


def requests() -> list[EngineRequest]:
    """Prompts of 1 to 80 tokens, of which every third begins as others do; every tenth reports logprobs."""
    draw = random.Random(3)
    stem = [draw.randrange(3, 384) for _ in range(40)]
    made = []
    for number in range(NUM_REQUESTS):
        prompt = [draw.randrange(3, 384) for _ in range(draw.choice((1, 2, 5, 17, 40)))]
        params = SamplingParams(
            temperature=0.8 if number % 2 else 0.0,
            seed=number,
            max_tokens=32,
            ignore_eos=True,
            prompt_logprobs=1 if number % 10 == 5 else None,
        )
        made.append(EngineRequest(str(number), stem + prompt if number % 3 == 0 else prompt, params))
    return made


def run(
    folder: Path,
    compile_config: CompileConfig | None,
    waiting: list[EngineRequest],
    *,
    max_num_batched_tokens: int = 128,
    num_kv_blocks: int = 40,
) -> tuple[dict[str, list[int]], StepStats]:
    """Tokens of a request alone, whose decodes have all captured, then of others that come four a step."""
    args = EngineArgs(
        model=str(folder), dtype="float32", num_threads=1, max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=max_num_batched_tokens, num_kv_blocks=num_kv_blocks,
    )  # fmt: skip
    config = resolve(args, open_model(args))
    runner = ModelRunner(config)
    if compile_config is not None:
        config = dataclasses.replace(config, compile=compile_config)
        runner = ModelRunner(config, capture=Repeated)
    core = EngineCore(config, InlineExecutor(runner))
    tokens: dict[str, list[int]] = {request.request_id: [] for request in waiting}
    core.add_request(waiting.pop(0))
    while waiting or core.has_unfinished():
        for _ in range(4 if len(tokens["0"]) > 2 else 0):
            if waiting:
                core.add_request(waiting.pop(0))
        for news in core.step():
            assert news.error is None
            tokens[news.request_id] += news.new_token_ids
    stats = core.stats()
    core.close()
    return tokens, stats


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[StepRows]:
    """The steps that run in pieces."""
    found: list[StepRows] = []
    replay = PieceGraphs.replay

    def spy(graphs: PieceGraphs, batch: ModelInput, shape: GraphShape) -> torch.Tensor:
        found.append(batch.rows)
        return replay(graphs, batch, shape)

    monkeypatch.setattr(PieceGraphs, "replay", spy)
    Repeated.reset()
    return found


@pytest.fixture
def replayed_whole(monkeypatch: pytest.MonkeyPatch) -> list[GraphShape]:
    """The steps that run whole: work that is done again reads lengths again, as attention does that can be captured."""
    found: list[GraphShape] = []
    replay_model = StepGraphs.replay_model

    def spy(graphs: StepGraphs, shape: GraphShape) -> torch.Tensor:
        found.append(shape)
        return replay_model(graphs, shape)

    monkeypatch.setattr(MixerPlan, "capturable", True)
    monkeypatch.setattr(StepGraphs, "replay_model", spy)
    return found


@pytest.mark.parametrize("family", ["gemma3", "deepseek_v2", "qwen3_moe"])
def test_steps_in_pieces_draw_the_tokens_of_whole_ones(
    family: str, tiny_family: Callable[[str], Path], replayed: list[StepRows]
) -> None:
    folder = tiny_family(family)
    # The cache is too small for all of them.
    expected, _ = run(folder, None, requests())
    tokens, stats = run(folder, PIECES, requests())
    assert tokens == expected
    assert Repeated.captured == len({4, NUM_SEQS, 64, 128})
    assert any(rows.num_reqs == rows.num_tokens for rows in replayed)
    assert any(rows.num_tokens > rows.num_reqs > PROMPT_REQS for rows in replayed)
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.num_free_blocks == stats.num_blocks


def test_steps_run_whole_where_they_fit_and_in_pieces_elsewhere(
    tiny_family: Callable[[str], Path], replayed: list[StepRows], replayed_whole: list[GraphShape]
) -> None:
    folder = tiny_family("qwen3")
    expected, _ = run(folder, None, requests())
    tokens, _ = run(folder, BOTH, requests())
    assert tokens == expected
    assert Repeated.captured == 3 * len({4, NUM_SEQS, 64, 128}) + len({64, 128})
    assert {shape.is_decode for shape in replayed_whole} == {True, False}
    assert any(rows.num_tokens > rows.num_reqs > PROMPT_REQS for rows in replayed)


def test_long_prompts_run_in_pieces_and_shorter_ones_whole(
    tmp_path: Path, replayed: list[StepRows], replayed_whole: list[GraphShape]
) -> None:
    folder = make_tiny_llama(tmp_path / "llama", max_position=4096, seed=7)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)

    def waiting() -> list[EngineRequest]:
        draw = random.Random(4)
        prompts = ([draw.randrange(3, 384) for _ in range(length)] for length in (9, MOST_WHOLE + 50, 30, 20, 10, 40))
        return [EngineRequest(str(number), prompt, greedy) for number, prompt in enumerate(prompts)]

    sizes = {"max_num_batched_tokens": MOST_WHOLE + 256, "num_kv_blocks": 160}
    expected, _ = run(folder, None, waiting(), **sizes)
    tokens, _ = run(folder, BOTH, waiting(), **sizes)
    assert tokens == expected
    assert {rows.num_tokens > MOST_WHOLE for rows in replayed} == {True}
    assert {shape.is_decode for shape in replayed_whole} == {True, False}
