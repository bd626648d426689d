"""Engines that draft with what checkpoints have: prediction layers, and heads in folders of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asked_for import WAYS, make_prompts, run, what_counts
from atom_core import EngineArgs, LLMEngine
from atom_core.config import ConfigError
from atom_core.engine.startup import open_model, resolve
from tiny_drafts import let_agree, make_agreeing, make_predicting
from tiny_heads import make_agreeing_head
from toy_drafts import config_of

SMALL: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 32, "num_threads": 1, "seed": 0}
EAGER = {"num_speculative_tokens": 3, "adaptive": False}


@pytest.fixture(scope="module", params=["mtp", "eagle", "eagle3"])
def target_and_settings(request, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mtp":
        return make_agreeing(folder / "model"), {"speculative_config": {"method": "mtp", **EAGER}}
    target, head = make_agreeing_head(folder, request.param)
    return target, {"speculative_config": {"method": request.param, "model": str(head), **EAGER}}


@pytest.fixture(scope="module")
def in_context(tmp_path_factory) -> Path:
    """A model whose prediction layer heeds what its cache has."""
    return make_agreeing(tmp_path_factory.mktemp("context"), reads="context")


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_what_checkpoints_have_changes_no_token(make_engine, target_and_settings, temperature):
    folder, settings = target_and_settings
    prompts = make_prompts(5)
    plain = run(make_engine(folder), prompts, temperature=temperature)
    engine = make_engine(folder, **settings)
    assert what_counts(run(engine, prompts, temperature=temperature)) == what_counts(plain)
    assert engine.stats.num_accepted_tokens > 0.9 * engine.stats.num_draft_tokens > 70


@pytest.fixture(scope="module")
def make_agreed(tmp_path_factory) -> Callable[[str], Path]:
    """``make_agreed(family)``: a checkpoint of a family whose prediction layer guesses what it generates."""

    @functools.cache
    def make(family: str) -> Path:
        folder = make_predicting(family, tmp_path_factory.mktemp(family) / "model", vocab_size=512)
        return let_agree(folder, norm_offset=float(family.startswith("qwen3")))

    return make


@pytest.fixture(scope="module")
def greedy_of() -> Callable[[Path, int, int], list[dict[str, Any]]]:
    """``greedy_of(folder, num_prompts, max_tokens)``: what a checkpoint gives without drafts."""

    @functools.cache
    def of(folder: Path, num_prompts: int, max_tokens: int) -> list[dict[str, Any]]:
        with LLMEngine(str(folder), **SMALL) as engine:
            return run(engine, make_prompts(num_prompts), temperature=0.0, max_tokens=max_tokens)

    return of


@pytest.mark.parametrize(
    ("family", "way"),
    [
        *(("qwen3_next", way) for way in WAYS),
        ("qwen3_5-text", "chunks of 9"),
        ("qwen3_5_moe-text", "plain"),
        ("deepseek_v32", "preempted"),
        ("glm_moe_dsa", "chunks of 9"),
    ],
)
def test_prediction_layers_that_agree_are_always_right_and_change_nothing(
    make_engine, make_agreed, greedy_of, family, way
):
    folder, asked = make_agreed(family), {"temperature": 0.0}
    engine = make_engine(folder, speculative_config={"method": "mtp", **EAGER}, **WAYS[way])
    assert what_counts(run(engine, make_prompts(4), **asked)) == what_counts(greedy_of(folder, 4, 24))
    assert engine.stats.num_accepted_tokens > 0.9 * engine.stats.num_draft_tokens > 50
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe", "deepseek_v32"])
def test_prediction_layers_that_are_mostly_wrong_change_nothing(make_engine, tiny_family, family):
    """Random ones, behind prompts that share beginnings of more than one state or block."""
    beginning = [token % 380 + 3 for token in (make_prompts(1)[0] * 9)[:70]]
    prompts = [beginning + [token % 380 + 3 for token in prompt] for prompt in make_prompts(4, longest=20)]
    folder = tiny_family(family)
    plain = run(make_engine(folder, enable_prefix_caching=False), prompts, temperature=1.0)
    engine = make_engine(folder, speculative_config={"method": "mtp", **EAGER})
    for _ in range(2):
        outputs = run(engine, prompts, temperature=1.0)
        assert what_counts(outputs) == what_counts(plain)
    assert all(output["num_cached_tokens"] >= 64 for output in outputs)
    assert engine.stats.num_accepted_tokens < 0.3 * engine.stats.num_draft_tokens


@pytest.mark.parametrize("way", WAYS)
def test_prediction_layers_are_right_as_often_however_the_engine_works(make_engine, in_context, greedy_of, way):
    """The model's guesses depend on its cache."""
    engine = make_engine(in_context, speculative_config={"method": "mtp", **EAGER}, **WAYS[way])
    outputs = run(engine, make_prompts(5), temperature=0.0, max_tokens=50)
    assert what_counts(outputs) == what_counts(greedy_of(in_context, 5, 50))
    assert engine.stats.num_accepted_tokens > 0.75 * engine.stats.num_draft_tokens > 100


def test_prefixes_out_of_the_cache_leave_prediction_layers_as_right_as_before(make_engine, in_context):
    beginning = (make_prompts(1)[0] * 9)[:70]
    prompts = [beginning + prompt for prompt in make_prompts(4, longest=20)]
    engine = make_engine(in_context, speculative_config={"method": "mtp", **EAGER})
    rates = []
    for _ in range(2):
        before = engine.stats
        outputs = run(engine, prompts, temperature=0.0)
        made = engine.stats.num_draft_tokens - before.num_draft_tokens
        rates.append((engine.stats.num_accepted_tokens - before.num_accepted_tokens) / made)
    assert all(output["num_cached_tokens"] >= 64 for output in outputs)
    assert rates[1] == pytest.approx(rates[0], abs=0.1)
    assert rates[0] > 0.75


def test_several_prediction_layers_are_refused_more_than_one_guess(tmp_path):
    folder = make_agreeing(tmp_path, num_prediction_layers=2)
    args = EngineArgs(model=str(folder), method="mtp", num_speculative_tokens=2)
    with pytest.raises(ConfigError, match="has 2 prediction layers, of which only the first is run here: ask for 1"):
        resolve(args, open_model(args))
    args = EngineArgs(model=str(folder), method="mtp")
    assert resolve(args, open_model(args)).speculation == config_of(folder, num_drafts=1, adaptive=True).speculation


def test_a_head_of_another_kind_is_refused(tmp_path):
    target, head = make_agreeing_head(tmp_path, "eagle3")
    args = EngineArgs(model=str(target), speculative_config={"method": "eagle", "model": str(head)})
    with pytest.raises(ConfigError, match="method is eagle, and .* has a head of eagle3: give that method"):
        resolve(args, open_model(args))
