"""Drafts change no token of models whose layers keep states, which cannot be taken back to an earlier token."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asked_for import WAYS, make_params, make_prompts, run, what_counts
from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.scheduler.drafting import Drafting
from fake_drafters import RecordedDrafter, always_drafting
from tiny_models import make_tiny_llama

pytest.importorskip("transformers")

VOCAB_SIZE = 384
FAMILIES = ["qwen3_next", "qwen3_5", "kimi_linear"]
NUM_DRAFTS = 4
SPECULATION = {"method": "ngram", "num_speculative_tokens": NUM_DRAFTS, "adaptive": False, "prompt_lookup_min": 1}
SAMPLES: dict[str, Any] = {"temperature": 1.0, "n": 2}

SMALL: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 32, "num_threads": 1, "seed": 0}

MakeEngine = Callable[..., LLMEngine]


def prompts_of(count: int = 4, longest: int = 40) -> list[list[int]]:
    return [[token % (VOCAB_SIZE - 3) + 3 for token in prompt] for prompt in make_prompts(count, longest)]


def let_repeat(engine: LLMEngine, records: list[list[int]], mistakes: float = 0.15) -> None:
    """Drafts are what was generated before, with mistakes here and there."""
    scheduler = engine._core._scheduler
    speculation = always_drafting(lambda: RecordedDrafter(records, VOCAB_SIZE, mistakes), NUM_DRAFTS)
    scheduler._drafting = Drafting(speculation, scheduler._book, scheduler.config, scheduler._clock)


def records_of(prompts: list[list[int]], outputs: list[dict[str, Any]]) -> list[list[int]]:
    each = len(outputs) // len(prompts)
    return [prompts[place // each] + output["token_ids"] for place, output in enumerate(outputs)]


def assert_nothing_is_held(engine: LLMEngine) -> None:
    cache = engine._core._scheduler._cache
    assert cache.pool.num_free == cache.config.num_blocks
    assert cache.states.slots.num_free * (1 + NUM_DRAFTS) == cache.config.num_slots
    assert cache.states.snapshots.num_free == cache.config.num_snapshots


@pytest.fixture(scope="module")
def plain_of(tiny_family: Callable[[str], Path]) -> Callable[[str], list[dict[str, Any]]]:
    """``plain_of(family)``: what `SAMPLES` of the prompts are without drafts."""

    @cache
    def of(family: str) -> list[dict[str, Any]]:
        with LLMEngine(str(tiny_family(family)), **SMALL) as engine:
            return run(engine, prompts_of(), **SAMPLES)

    return of


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_model_drafts_for_one_that_keeps_states(
    tiny_family, plain_of, make_engine: MakeEngine, tmp_path: Path, way: str
):
    prompts, folder = prompts_of(), tiny_family("qwen3_next")
    draft = make_tiny_llama(tmp_path / "draft", seed=5, num_layers=1, hidden=32, intermediate=48, vocab=VOCAB_SIZE)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, draft)
    speculation = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2, "adaptive": False}
    engine = make_engine(folder, speculative_config=speculation, **WAYS[way])
    assert what_counts(run(engine, prompts, **SAMPLES)) == what_counts(plain_of("qwen3_next"))
    assert engine.stats.num_draft_tokens > 100
    assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_nothing(tiny_family, plain_of, make_engine: MakeEngine, family: str, way: str):
    prompts, plain = prompts_of(), plain_of(family)
    engine = make_engine(tiny_family(family), speculative_config=SPECULATION, **WAYS[way])
    let_repeat(engine, records_of(prompts, plain))
    assert what_counts(run(engine, prompts, **SAMPLES)) == what_counts(plain)
    stats = engine.stats
    assert 40 < stats.num_accepted_tokens < stats.num_draft_tokens - 20
    assert (stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_go_on_from_a_state_behind_a_cached_prefix(
    tiny_family: Callable[[str], Path], make_engine: MakeEngine, family: str
):
    """Prompts of 65 to 71 tokens: the state behind 64 of them goes to another slot than the last one."""
    folder, [prompt] = tiny_family(family), prompts_of(1, longest=20)
    prompts = [(prompt * 9)[:64] + [5] * count for count in range(1, 8)]
    plain = run(make_engine(folder, enable_prefix_caching=False), prompts, temperature=1.0)
    engine = make_engine(folder, speculative_config=SPECULATION)
    let_repeat(engine, records_of(prompts, plain))
    cold, *warm = [run(engine, [prompt], temperature=1.0)[0] for prompt in prompts]
    assert [output["num_cached_tokens"] for output in warm] == [64] * len(warm)
    without_cache = make_engine(folder, enable_prefix_caching=False)
    alone = [run(without_cache, [prompt], temperature=1.0)[0] for prompt in prompts]
    assert what_counts([cold, *warm]) == what_counts(alone)
    assert engine.stats.num_accepted_tokens > 0


def test_aborted_requests_with_drafts_in_flight_leave_no_slot_behind(
    tiny_family: Callable[[str], Path], make_engine: MakeEngine
):
    prompts = prompts_of(6)
    engine = make_engine(tiny_family("qwen3_5"), speculative_config=SPECULATION)
    plain = run(engine, prompts, temperature=0.0, max_tokens=40)
    let_repeat(engine, records_of(prompts, plain))
    ids = engine.add_request(prompts, make_params(6, temperature=0.0, max_tokens=40))
    for number, request_id in enumerate(ids):
        for _ in range(number):
            engine.step()
        engine.abort([request_id])
    assert_nothing_is_held(engine)


def test_forced_tokens_and_guesses_go_together(tiny_family: Callable[[str], Path], make_engine: MakeEngine):
    """A grammar forces more tokens at once than a request has slots; others beside it have guesses."""
    constraints = [StructuredOutputParams(regex="(abcabcabcabc|xyz)[ab]{2}"), None]
    params = [
        SamplingParams(temperature=1.0, max_tokens=24, seed=index, structured_outputs=constraint)
        for index, constraint in enumerate(constraints)
    ]
    prompts, folder = [prompt * 2 for prompt in prompts_of(2)], tiny_family("qwen3_next")
    plain, drafting = (
        make_engine(folder, **options).generate(prompts, params, use_tqdm=False)
        for options in ({}, {"speculative_config": SPECULATION})
    )
    assert what_counts(plain) == what_counts(drafting)
    assert [output["num_draft_tokens"] > 0 for output in drafting] == [False, True]
