"""Decodes of transformers' layers are recorded on a CPU, where these bring no values to Python."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.worker.model.engine_model import EngineModel

pytest.importorskip("transformers")

from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from tiny_decoders import make_decoder

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True, logprobs=2)

pytestmark = pytest.mark.usefixtures("quiet_transformers")


@pytest.fixture
def layers_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step whose layers were called."""
    rows: list[int] = []
    run_layers = EngineModel.run_layers

    def counted(self: EngineModel, *arguments: Any) -> Any:
        rows.append(len(arguments[0]))
        return run_layers(self, *arguments)

    monkeypatch.setattr(EngineModel, "run_layers", counted)
    return rows


def answers(folder: Path, dtype: str, **settings: Any) -> list[Any]:
    prompts = [[token, 3, token + 1] for token in range(5)]
    with LLMEngine(
        str(folder), model_impl="transformers", dtype=dtype, num_threads=1, max_num_seqs=3, **settings
    ) as it:
        outputs: list[dict[str, Any]] = it.generate(prompts, PARAMS, use_tqdm=False)
    return [(output["token_ids"], output["logprobs"]) for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "cohere2", "olmoe", "biogpt"])
def test_recorded_decodes_change_no_token_and_no_probability(
    model_type: str, dtype: str, tmp_path: Path, layers_run: list[int]
):
    folder = make_decoder(model_type, tmp_path)
    expected = answers(folder, dtype, enforce_eager=True)
    without = len(layers_run)
    layers_run.clear()
    assert answers(folder, dtype) == expected
    assert len(layers_run) < without / 2


def test_layers_that_bring_values_to_python_run_as_they_are(
    tmp_path: Path, layers_run: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    usual = ALL_EXPERTS_FUNCTIONS["grouped_mm"]

    def reading(module: Any, hidden_states: Any, chosen: Any, *given: Any) -> Any:
        assert len(chosen.tolist()) == len(hidden_states)
        return usual(module, hidden_states, chosen, *given)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._global_mapping, "grouped_mm", reading)
    folder = make_decoder("olmoe", tmp_path)
    expected = answers(folder, "float32", enforce_eager=True)
    without = len(layers_run)
    layers_run.clear()
    with caplog.at_level(logging.INFO):
        assert answers(folder, "float32") == expected
    assert len(layers_run) == without
    assert "decode steps are not recorded: tolist brings values" in caplog.text
