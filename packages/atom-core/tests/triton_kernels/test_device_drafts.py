"""Behind steps that are taken the way a GPU does, a draft model makes the drafts that it makes behind the host's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atom_core import SamplingParams
from atom_core.config import CompileConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, ModelOutput, NewRequest, ScheduledRequest, SchedulerOutput
from atom_core.speculation import SpeculationConfig
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.model.loading_with_cache import LoadModel
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.runner import Masks, PendingOutput
from atom_core.worker.sampling.sampler import Drawing
from repeated_work import Repeated
from tiny_drafts import make_predicting
from toy_drafts import ToyDraft, config_of, load_last_token, load_with_draft

SIZES = {"num_kv_blocks": 32, "max_num_seqs": 2, "max_num_batched_tokens": 32, "num_threads": 1}
FULL = CompileConfig(graph_mode="full", capture_sizes=(2,))
# A GPU captures graphs unless it is told not to.
NO_GRAPHS = CompileConfig()
PIECES = CompileConfig(graph_mode="piecewise", capture_sizes=(4,))


class Recording(ModelRunner):
    """Remembers what steps brought."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.brought: list[Any] = []

    def sample(self, masks: Masks | None = None) -> PendingOutput:
        report = super().sample(masks)

        def record() -> ModelOutput:
            output = report()
            self.brought.extend(
                (result.request_id, result.token_ids, result.next_draft_token_ids) for result in output.requests
            )
            return output

        return record


def brought_by(
    folder: Path,
    load: LoadModel,
    compile_config: CompileConfig | None = None,
    *,
    max_tokens: int,
    num_fewer: int = 0,
    num_drafts: int = 1,
    model: Path | None = None,
) -> tuple[list[Any], int]:
    """What all steps of two requests brought, and how many drafts were accepted; the second has `num_fewer` tokens."""
    config = config_of(folder, num_drafts=num_drafts, dtype="float32", **SIZES)
    if model is not None:
        whole = {"method": "draft_model", "model": str(model), "num_tokens": num_drafts, "adaptive": False}
        config = dataclasses.replace(config, speculation=SpeculationConfig(**whole))
    if compile_config is None:
        runner = Recording(config, load)
    else:
        config = dataclasses.replace(config, compile=compile_config)
        runner = Recording(config, load, capture=Repeated)
    core = EngineCore(config, InlineExecutor(runner))
    for number, prompt in enumerate(([5, 9, 13, 8], list(range(20, 27)))):
        longest = max_tokens - number * num_fewer
        asked = SamplingParams(temperature=1.0, seed=3 + number, ignore_eos=True, max_tokens=longest)
        core.add_request(EngineRequest(str(number), prompt, asked))
    while core.has_unfinished():
        assert [news.error for news in core.step() if news.error] == []
    stats = core.stats()
    assert stats.num_free_blocks == stats.num_blocks
    core.close()
    return runner.brought, stats.num_accepted_tokens


def toy(aux: tuple[int, ...]) -> LoadModel:
    return partial(load_with_draft, partial(ToyDraft, aux=aux), aux=aux)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[GraphShape]:
    """The shapes of the graphs that run."""
    found: list[GraphShape] = []
    replay = StepGraphs.replay_sampler

    def spy(graphs: StepGraphs, shape: GraphShape, drawing: Drawing) -> Any:
        found.append(shape)
        return replay(graphs, shape, drawing)

    monkeypatch.setattr(StepGraphs, "replay_sampler", spy)
    return found


@pytest.fixture
def drafted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[GraphShape, list[int]]]:
    """The shapes of the steps behind which captured passes draft, and how many tokens for each request."""
    found: list[tuple[GraphShape, list[int]]] = []
    replay = StepGraphs.replay_drafter

    def spy(graphs: StepGraphs, shape: GraphShape, sampled_n: Any, numbers: Any, places: Any = None) -> Any:
        drafts = replay(graphs, shape, sampled_n, numbers, places)
        found.extend([] if drafts is None else [(shape, numbers.tolist())])
        told = graphs._device_numbers.tolist()
        assert told == numbers.tolist() + [0] * (len(told) - len(numbers))
        return drafts

    monkeypatch.setattr(StepGraphs, "replay_drafter", spy)
    return found


@pytest.mark.parametrize("num_drafts", [1, 5])
def test_graphs_verify_and_make_drafts_as_the_host_does(tiny_llama, replayed, drafted, num_drafts):
    """The model has no attention, and its draft is often right."""
    load = partial(load_last_token, certainty=7.0)
    asked = {"num_drafts": num_drafts, "max_tokens": 16}
    expected, num_accepted = brought_by(tiny_llama, load, **asked)
    assert brought_by(tiny_llama, load, FULL, **asked) == (expected, num_accepted)
    assert num_accepted > 4
    shape = GraphShape(2, 2 * (1 + num_drafts), tokens_each=1 + num_drafts)
    assert shape in set(replayed)
    assert (shape, [num_drafts] * 2) in drafted


def test_graphs_hold_requests_with_fewer_drafts_than_others(tiny_llama, replayed, drafted):
    """One of two requests ends sooner, so that it has fewer drafts first, and less room for others."""
    load = partial(load_last_token, certainty=7.0)
    seen = set()
    for num_fewer in (1, 2):
        asked = {"num_drafts": 3, "max_tokens": 18, "num_fewer": num_fewer}
        expected = brought_by(tiny_llama, load, **asked)
        replayed.clear()
        drafted.clear()
        assert brought_by(tiny_llama, load, FULL, **asked) == expected
        assert len(drafted) == len(replayed) > 5
        seen |= {tuple(numbers) for _, numbers in drafted if len(set(numbers)) > 1}
    assert seen


def test_captured_steps_give_a_draft_model_what_steps_on_the_host_give(tiny_llama, replayed):
    load = toy(aux=(0, 1))
    expected = brought_by(tiny_llama, load, max_tokens=3)
    assert brought_by(tiny_llama, load, FULL, max_tokens=3) == expected
    assert GraphShape(2, 4, tokens_each=2) in replayed


@pytest.mark.slow
def test_captured_passes_of_a_draft_with_a_cache_give_the_drafts_of_the_host(tiny_llama, drafted):
    """One request ends before the other, which drafts beside one with less room, and then beside padding."""
    load = toy(aux=(0, 1))
    asked: dict[str, Any] = {"num_drafts": 2, "max_tokens": 9, "num_fewer": 2}
    expected = brought_by(tiny_llama, load, **asked)
    assert brought_by(tiny_llama, load, FULL, **asked) == expected
    numbers = [numbers for shape, numbers in drafted if shape == GraphShape(2, 6, tokens_each=3)]
    assert [2, 2] in numbers
    assert any(len(each) == 2 and each[0] != each[1] for each in numbers)


@pytest.mark.slow
def test_captured_passes_of_a_whole_model_give_the_drafts_of_the_host(tiny_llama, drafted):
    """It drafts for itself, so that some are right at any temperature; one request ends before the other."""
    asked: dict[str, Any] = {"num_drafts": 2, "max_tokens": 7, "num_fewer": 2, "model": tiny_llama}
    expected = brought_by(tiny_llama, load_engine_model, **asked)
    assert brought_by(tiny_llama, load_engine_model, FULL, **asked) == expected
    assert expected[1] > 0
    numbers = [numbers for shape, numbers in drafted if shape == GraphShape(2, 6, tokens_each=3)]
    assert any(len(each) == 2 and each[0] != each[1] for each in numbers)


@pytest.mark.slow
def test_a_request_with_fewer_drafts_than_its_graph_has_drafts_in_its_own_blocks(tiny_llama, replayed):
    config = config_of(tiny_llama, num_drafts=2, dtype="float32", **SIZES)
    prompts, blocks = {"a": [5, 9, 13, 8, 2, 7], "b": list(range(20, 29))}, {"a": [3], "b": [7]}
    params = SamplingParams(temperature=0.0)
    new = [NewRequest(name, ids, len(ids), params, (), 0) for name, ids in prompts.items()]
    begin = [ScheduledRequest(name, 0, len(ids), [blocks[name]], 1) for name, ids in prompts.items()]
    go_on = [ScheduledRequest("a", 6, 3, [], 3, (1, 2), 2), ScheduledRequest("b", 9, 1, [], 1, (), 2)]
    found = []
    for graphs in (None, FULL):
        here = dataclasses.replace(config, compile=graphs or NO_GRAPHS)
        runner = ModelRunner(here, toy(aux=(0, 1)), capture=None if graphs is None else Repeated)
        runner.load()
        for step in (SchedulerOutput(0, begin, new, []), SchedulerOutput(1, go_on, [], [])):
            runner.forward(step)
            output = runner.sample(None)()
        found.append([(result.token_ids, result.next_draft_token_ids) for result in output.requests])
    assert found[0] == found[1]
    assert replayed == [GraphShape(2, 6, tokens_each=3)]


def test_steps_that_make_no_drafts_keep_what_later_drafts_read(tiny_llama, drafted):
    """Nobody reads what the draft's attention gives in them, and it sees nothing."""
    config = config_of(tiny_llama, num_drafts=2, dtype="float32", **SIZES)
    prompt, params, found = [5, 9, 13, 8, 2, 7], SamplingParams(temperature=0.0), []
    for graphs in (None, FULL):
        here = dataclasses.replace(config, compile=graphs or NO_GRAPHS)
        runner = ModelRunner(here, toy(aux=(0, 1)), capture=None if graphs is None else Repeated)
        runner.load()
        for number in range(5):
            row = ScheduledRequest("a", 5 + number, 1, [], 1, (), 2 if number == 4 else 0)
            new = []
            if number == 0:
                row = ScheduledRequest("a", 0, 6, [[3]], 1)
                new = [NewRequest("a", prompt, 6, params, (), 0)]
            runner.forward(SchedulerOutput(number, [row], new, []))
            [result] = runner.sample(None)().requests
        found.append((result.token_ids, result.next_draft_token_ids))
    assert found[0] == found[1]
    assert [numbers for _, numbers in drafted] == [[0]] * 3 + [[2]]


def generate(runner: ModelRunner, drafts: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
    """Greedy tokens of two requests; a step of both has those drafts of each that come next."""
    runner.load()
    prompts = {"a": [5, 9, 13, 8, 2, 7], "b": list(range(20, 29))}
    places = {"a": [[3], [1]], "b": [[7], [4]]}
    new = [NewRequest(name, ids, len(ids), SamplingParams(temperature=0.0), (), 0) for name, ids in prompts.items()]
    step = [ScheduledRequest(name, 0, len(ids), places[name], 1) for name, ids in prompts.items()]
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    for number, each in enumerate([*zip(*drafts.values(), strict=True), ()]):
        runner.forward(SchedulerOutput(number, step, [] if number else new, []))
        for result in runner.sample(None)().requests:
            tokens[result.request_id] += result.token_ids
        step = [
            ScheduledRequest(name, len(prompts[name]) + len(tokens[name]) - 1, 1 + len(ids), [], 1 + len(ids), ids)
            for name, ids in zip(prompts, map(tuple, each), strict=False)
        ]
    return tokens


@pytest.mark.slow
def test_states_go_on_from_what_was_accepted_in_graphs_of_more_tokens_than_a_request_has(
    tmp_path: Path, replayed: list[GraphShape]
):
    """Requests have unequal numbers of drafts, right and wrong ones; graphs repeat tokens whose states are gone."""
    layers: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    folder, load = make_predicting("qwen3_5-text", tmp_path / "model", **layers), toy(aux=())
    config = config_of(folder, num_drafts=2, dtype="float32", **SIZES)
    plain = generate(ModelRunner(dataclasses.replace(config, compile=NO_GRAPHS), load), {"a": [()] * 9, "b": [()] * 9})
    a, b = plain["a"], plain["b"]
    # Behind a's first, its third and its fourth token; behind b's first, second and fifth.
    drafts = {"a": [(a[1], 0), (), (a[4], a[5])], "b": [(), (b[2], b[3]), (0,)]}
    runner = ModelRunner(dataclasses.replace(config, compile=FULL), load, capture=Repeated)
    found = generate(runner, drafts)
    assert {name: plain[name][: len(tokens)] for name, tokens in found.items()} == found
    assert (len(found["a"]), len(found["b"])) == (7, 6)
    assert replayed == [GraphShape(2, 6, tokens_each=3)] * 3


def test_steps_in_pieces_give_a_draft_model_what_steps_on_the_host_give(tiny_llama):
    load = toy(aux=(1,))
    Repeated.reset()
    expected = brought_by(tiny_llama, load, max_tokens=2)
    assert brought_by(tiny_llama, load, PIECES, max_tokens=2) == expected
    assert Repeated.replayed > 0
