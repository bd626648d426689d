"""Weights and logits that are NaN or infinite are told: nothing is sampled from them, and nobody else is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_core import SamplingParams
from atom_core.messages import NOT_FINITE
from atom_core.worker.sampling.sampler import Drawing
from grammars import make_params, run

BROKEN_TOKEN = 77
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def damaged(tiny_llama: Path, tmp_path: Path):
    """``damaged(value, name, row)``: the tiny model with a number in one row that no training gave it."""

    def make(value: float, name: str = EMBEDDING, row: int = BROKEN_TOKEN) -> Path:
        folder = tmp_path / "damaged"
        shutil.copytree(tiny_llama, folder)
        (file,) = folder.glob("*.safetensors")
        tensors = load_file(file)
        tensors[name][row, 3] = value
        save_file(tensors, file)
        return folder

    return make


WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 1},
    "filtered": {"temperature": 1.0, "seed": 1, "top_k": 5, "top_p": 0.9},
    "penalized": {"temperature": 1.0, "seed": 1, "repetition_penalty": 1.2, "logit_bias": {9: 2.0}},
    "with logprobs": {"temperature": 0.0, "logprobs": 3},
}


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "step by step"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_request_that_meets_such_numbers_ends_with_an_error_and_others_go_on(make_engine, damaged, way, value, ahead):
    wanted = SamplingParams(max_tokens=6, ignore_eos=True, **way)
    allowed = SamplingParams(max_tokens=6, ignore_eos=True, allowed_token_ids=[5, 6, 7], **way)
    (expected,) = run(make_engine(), allowed, [[5, 6]])
    engine = make_engine(damaged(value), async_scheduling=ahead)
    bad, good = run(engine, [wanted, allowed], [[5, BROKEN_TOKEN, 6], [5, 6]])
    assert (bad["finish_reason"], bad["token_ids"]) == ("error", [])
    assert "logits are not finite" in bad["error"]
    assert good["token_ids"] == expected["token_ids"]
    assert engine.stats.num_not_finite == 1
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_with_drafts_too(make_engine, damaged):
    config = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    engine = make_engine(damaged(float("nan")), speculative_config=config)
    again = [5, 6, 7, 8] * 4
    bad, good = run(
        engine, SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True), [[BROKEN_TOKEN, *again], again]
    )
    assert (bad["finish_reason"], bad["token_ids"]) == ("error", [])
    assert len(good["token_ids"]) == 6


def test_under_a_grammar_too(make_engine, damaged):
    engine = make_engine(damaged(float("nan")))
    (bad,) = run(engine, make_params(choice=["yes", "no"]), [[5, BROKEN_TOKEN]])
    assert (bad["finish_reason"], bad["text"]) == ("error", "")
    assert not engine._core._constrained._followed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_while_loading_the_tensor_is_named(make_engine, damaged, caplog, value):
    make_engine(damaged(value, "model.layers.1.mlp.up_proj.weight"))
    (line,) = [record.getMessage() for record in caplog.records if "NaN" in record.getMessage()]
    assert "1 damaged weight: model.layers.1.mlp.up_proj.weight" in line


def test_sound_weights_are_not_spoken_of(make_engine, caplog):
    make_engine()
    assert "NaN" not in caplog.text


def test_a_logit_of_minus_infinity_beside_others_is_sampled_from(make_engine, damaged):
    """Some checkpoints never say a token: that is no fault."""
    engine = make_engine(damaged(float("nan"), "lm_head.weight", row=9))
    logits = torch.zeros(2, engine.info.vocab_size)
    logits[0, 1:] = float("-inf")
    logits[1] = float("-inf")
    sampler = engine._core._executor._runner.running.sampler
    slots, positions = torch.tensor([0, 1]), torch.tensor([3, 3])
    with torch.inference_mode():
        assert sampler.draw(logits, slots, positions, drawing=Drawing.ALL).tolist() == [0, NOT_FINITE]
    assert sampler._states.history[[0, 1], [3, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_prompt_that_is_embedded_ends_with_an_error_and_others_have_their_vectors(make_engine, damaged, pooling):
    [expected] = make_engine().embed([[5, 6]], pooling)
    engine = make_engine(damaged(float("nan")))
    with pytest.raises(RuntimeError, match="hidden states are not finite"):
        engine.embed([[BROKEN_TOKEN]], pooling)
    assert engine.embed([[5, 6]], pooling) == [expected]
    assert engine.stats.num_not_finite == 1
