"""Decode steps of a CPU are recorded once for each number of requests, and replayed without changing a bit."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace

import msgspec
import pytest
import torch

from atom_core import SamplingParams
from atom_core.worker.model.cached_mixers import CachedMixers
from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.steps.batch import DecodeRows, ModelInput
from atom_core.worker.steps.recorded_decodes import RecordedDecodes
from atom_kernels.protocols import BatchGeometry
from atom_models.forward_context import ForwardContext, set_forward_context
from tiny_adapters import make_adapter

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True, logprobs=2)


@pytest.fixture
def layers_run(monkeypatch):
    """How often the layers of a model were called one by one."""
    calls = []
    run_layers = EngineModel.run_layers

    def counted(self, *arguments):
        calls.append(len(arguments[0]))
        return run_layers(self, *arguments)

    monkeypatch.setattr(EngineModel, "run_layers", counted)
    return calls


def answers(engine, prompts, params=PARAMS, **options):
    outputs = engine.generate(prompts, params, use_tqdm=False, **options)
    return [(output["token_ids"], output["logprobs"]) for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_tokens_and_log_probabilities_are_those_of_steps_that_are_not_recorded(
    dtype, quantization, make_engine, layers_run
):
    settings = {"dtype": dtype, "quantization": quantization, "max_num_seqs": 3}
    prompts = [[token, 3, token + 1] for token in range(7)]
    expected = answers(make_engine(enforce_eager=True, **settings), prompts)
    without = len(layers_run)
    layers_run.clear()
    assert answers(make_engine(**settings), prompts) == expected
    assert len(layers_run) < without / 2


def test_a_request_that_joins_or_ends_changes_to_the_steps_of_its_number(make_engine, layers_run):
    engine = make_engine()
    params = [msgspec.structs.replace(PARAMS, max_tokens=length) for length in (40, 9, 25, 33)]
    prompts = [[token] * 20 for token in range(4)]
    assert answers(engine, prompts, params) == answers(make_engine(enforce_eager=True), prompts, params)
    layers_run.clear()
    answers(engine, prompts, params)
    assert [size for size in layers_run if size <= len(prompts)] == []


def test_adapters_that_come_and_go_are_those_of_the_steps_behind_them(tiny_llama, tmp_path, make_engine, layers_run):
    folders = [str(make_adapter(tmp_path / str(seed), tiny_llama, seed=seed, std=0.1)) for seed in range(3)]
    prompts = [[3, 4, 5], [6, 7]]

    def answers_of_all(engine):
        found = []
        for number, folder in enumerate(folders):
            engine.load_adapter(f"a{number}", folder)
            found.append(answers(engine, prompts, adapter=[f"a{number}", "a0"]))
        engine.unload_adapter("a1")
        return [*found, answers(engine, prompts, adapter="a2"), answers(engine, prompts)]

    settings = {"enable_lora": True, "max_loras": 3}
    expected = answers_of_all(make_engine(enforce_eager=True, **settings))
    without = len(layers_run)
    layers_run.clear()
    assert answers_of_all(make_engine(**settings)) == expected
    assert len(layers_run) < without / 2


class Stub:
    """A model of one addition, or of what `run` says."""

    adapters, cached = None, CachedMixers()

    def __init__(self, run=lambda ids: (ids + 1).float()):
        self.calls = 0
        self._run = run

    def mixing(self, geometries, adapters=None):
        return set_forward_context(ForwardContext({}, {}))

    def run_layers(self, input_ids, positions):
        self.calls += 1
        return LayerStates(self._run(input_ids))

    def forward(self, input_ids, positions, geometries, adapters):
        return self.run_layers(input_ids, positions)


def step(ids):
    count = len(ids)
    numbers = torch.arange(count)
    host = numbers.numpy()
    geometry = BatchGeometry(
        query_start_loc=torch.arange(count + 1, dtype=torch.int32),
        seq_lens=torch.ones(count, dtype=torch.int32),
        block_table=torch.zeros(count, 1, dtype=torch.int32),
        slot_mapping=numbers,
        num_reqs=count,
        num_tokens=count,
        num_decodes=count,
        max_query_len=1,
        max_seq_len=1,
    )
    rows = DecodeRows(host, host, host * 0 + 1, torch.arange(count + 1).numpy(), host * 0 + 1, host, host * 0, host * 0)
    return ModelInput(rows, torch.tensor(ids), numbers, (geometry,), None, numbers, numbers)


def recorded_over(model, *, is_marked=lambda: False):
    return RecordedDecodes(model, max_blocks=4, max_seq_len=64, is_marked=is_marked)


def test_a_number_of_requests_that_seldom_comes_is_not_recorded():
    recorded = recorded_over(Stub())
    assert [recorded.run(step([n])) is None for n in range(3)] == [True, True, False]
    assert recorded.run(step([1, 2])) is None


def first_of(ids):
    """The first id, read where no recording sees it."""
    return ctypes.c_int64.from_address(ids.data_ptr()).value


def test_a_model_that_decides_by_what_it_reads_unseen_is_run_as_it_is(caplog):
    model = Stub(lambda ids: (ids + 1).float() if first_of(ids) < 5 else (ids - 1).float())
    recorded = recorded_over(model)
    for _ in range(3):
        recorded.run(step([1]))
    with caplog.at_level(logging.WARNING):
        states = recorded.run(step([7]))
    assert states.hidden_TD.tolist() == [6.0]
    assert "are not recorded" in caplog.text
    assert recorded.run(step([1])) is None


def test_a_model_that_brings_values_to_python_is_never_replayed(caplog):
    model = Stub(lambda ids: (ids + 1).float() if ids[0] < 5 else (ids - 1).float())
    recorded = recorded_over(model)
    with caplog.at_level(logging.INFO):
        found = [recorded.run(step([n])) for n in range(8)]
    assert [None if states is None else states.hidden_TD.tolist() for states in found] == [
        *2 * [None],
        [3.0],
        *5 * [None],
    ]
    assert model.calls == 1
    assert "not recorded: aten" in caplog.text


def test_a_model_that_fails_while_it_is_recorded_is_run_as_it_is(caplog):
    def fail(ids):
        raise NotImplementedError("no storage")

    recorded = recorded_over(Stub(fail))
    with caplog.at_level(logging.WARNING):
        assert [recorded.run(step([n])) for n in range(5)] == [None] * 5
    assert caplog.text.count("no storage") == 1


def test_the_layers_are_not_called_once_a_step_is_proven():
    model = Stub()
    recorded = recorded_over(model)
    found = [recorded.run(step([n])) for n in range(3)][2:]
    found += [recorded.run(step([n])) for n in range(3, 8)]
    assert [states.hidden_TD.tolist() for states in found][-1] == [8.0]
    assert model.calls == 2  # the recording, and the proof


@pytest.mark.parametrize(
    "given",
    [
        {"token_types": torch.zeros(1, dtype=torch.int64)},
        {"offsets": torch.zeros(1, dtype=torch.int64)},
        {"seen": object()},
    ],
    ids=["two texts", "moved positions", "pictures"],
)
def test_steps_of_more_than_plain_text_run_as_they_are(given):
    recorded = recorded_over(Stub())
    assert all(recorded.run(replace(step([n]), **given)) is None for n in range(6))


def test_layers_that_a_trace_names_are_called_one_by_one():
    recorded = recorded_over(Stub(), is_marked=lambda: True)
    assert all(recorded.run(step([n])) is None for n in range(6))
