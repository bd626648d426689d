"""Drafts change no token, whoever makes them, whatever is asked for and however the engine has to work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from asked_for import ASKED, VOCAB_SIZE, WAYS, WAYS_AND_ASKED, make_params, make_prompts, run, what_counts
from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.scheduler.drafting import Drafting
from atom_core.speculation import Drafter, SuffixConfig
from atom_core.speculation.ngram import NgramDrafter
from atom_core.speculation.suffix.drafter import SuffixDrafter
from atom_core.speculation.suffix.past_outputs import PastOutputs
from fake_drafters import RandomDrafter, RecordedDrafter, always_drafting

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "is_open": {"type": "boolean"}},
    "required": ["name", "is_open"],
    "additionalProperties": False,
}


def let_draft(engine: LLMEngine, make_drafter: Callable[[], Drafter], num_tokens: int = 4) -> None:
    scheduler = engine._core._scheduler
    scheduler._drafting = Drafting(
        always_drafting(make_drafter, num_tokens), scheduler._book, scheduler.config, scheduler._clock
    )


def records_of(prompts: list[list[int]], outputs: list[dict[str, Any]]) -> list[list[int]]:
    per_prompt = len(outputs) // len(prompts)
    return [prompts[place // per_prompt] + output["token_ids"] for place, output in enumerate(outputs)]


def remembered(outputs: list[dict[str, Any]]) -> PastOutputs:
    past = PastOutputs(100)
    for output in outputs:
        past.add("", output["token_ids"])
    return past


@pytest.fixture(scope="module")
def without_drafts(engine: LLMEngine) -> Callable[[str], list[dict[str, Any]]]:
    """``without_drafts(asked)``: what five prompts give, in no way but the plain one."""
    return cache(lambda asked: run(engine, make_prompts(5), **ASKED[asked]))


@pytest.mark.parametrize(("way", "asked"), WAYS_AND_ASKED)
def test_drafts_change_nothing(make_engine, without_drafts, way, asked):
    prompts, plain = make_prompts(5), without_drafts(asked)
    records = records_of(prompts, plain)
    engine = make_engine(**WAYS[way])
    for make_drafter in (
        lambda: RandomDrafter(VOCAB_SIZE),
        lambda: RecordedDrafter(records, VOCAB_SIZE),
        lambda: NgramDrafter(1, 4),
        # What it has generated before, under whatever was asked for.
        partial(SuffixDrafter, SuffixConfig(), remembered(plain)),
    ):
        let_draft(engine, make_drafter)
        assert what_counts(run(engine, prompts, **ASKED[asked])) == what_counts(plain)
    assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("batch_size", range(1, 9))
def test_drafts_change_nothing_in_any_batch(make_engine, batch_size):
    prompts = make_prompts(batch_size)
    engine = make_engine()
    plain = run(engine, prompts, temperature=0.8)
    records = records_of(prompts, plain)
    let_draft(engine, lambda: RecordedDrafter(records, VOCAB_SIZE), num_tokens=7)
    assert what_counts(run(engine, prompts, temperature=0.8)) == what_counts(plain)


def test_right_drafts_take_fewer_steps_and_all_are_reported(make_engine):
    prompts = make_prompts(1)
    engine = make_engine()
    (plain,) = run(engine, prompts, temperature=1.0)
    records = records_of(prompts, [plain])
    let_draft(engine, lambda: RecordedDrafter(records, VOCAB_SIZE, mistakes=0.0), num_tokens=5)
    engine.add_request(prompts, make_params(1, temperature=1.0))
    num_news = 0
    while not engine.is_finished():
        num_news += 1
        for output in engine.step():
            assert output["token_ids"] == plain["token_ids"]
    # One token of the prompt's step, and six of each step with drafts.
    assert num_news <= 2 * (1 + 4)


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [{"method": "ngram", "prompt_lookup_min": 1}, {"method": "suffix"}])
def test_lookups_by_their_flags_change_nothing_and_are_counted(make_engine, method, temperature, adaptive, capsys):
    prompts = [[*prompt, *prompt, *prompt] for prompt in make_prompts(4)]
    config = {"num_speculative_tokens": 3, "adaptive": adaptive, **method}
    engine = make_engine(speculative_config=config)
    plain = run(make_engine(), prompts, temperature=temperature, max_tokens=60)
    outputs = run(engine, prompts, temperature=temperature, max_tokens=60)
    assert what_counts(outputs) == what_counts(plain)
    # What was generated before is looked up too.
    more = run(engine, prompts, temperature=temperature, max_tokens=60)
    assert what_counts(more) == what_counts(plain)
    outputs += more
    stats = engine.stats
    assert stats.num_draft_tokens == sum(output["num_draft_tokens"] for output in outputs)
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
    assert stats.num_accepted_tokens >= sum(output["num_accepted_tokens"] for output in outputs)
    assert len(stats.num_accepted_tokens_per_pos) == 3
    assert list(stats.num_accepted_tokens_per_pos) == sorted(stats.num_accepted_tokens_per_pos, reverse=True)
    if not adaptive:
        assert stats.num_draft_tokens >= stats.num_drafts > 20
    engine.print_mtp_statistics()
    rate = stats.num_accepted_tokens / max(stats.num_draft_tokens, 1)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "MTP Statistics:",
        f"Total draft tokens: {stats.num_draft_tokens}",
        f"Accepted tokens: {stats.num_accepted_tokens}",
        f"Acceptance rate: {rate:.2%}",
    ]


def test_what_was_generated_before_is_guessed_until_it_is_to_be_forgotten(make_engine):
    config = {"method": "suffix", "num_speculative_tokens": 8, "adaptive": False}
    engine, prompts = make_engine(speculative_config=config), make_prompts(4)
    outputs = []
    for _ in range(3):
        outputs.append(run(engine, prompts, temperature=1.0))
        if len(outputs) == 2:
            assert engine.stats.num_kept_output_tokens == 2 * 4 * 25
            engine.reset_prefix_cache()
            assert engine.stats.num_kept_output_tokens == 0
    numbers = [sum(output["num_accepted_tokens"] for output in each) for each in outputs]
    assert numbers[0] == numbers[2] < 10
    assert numbers[1] > 60
    assert what_counts(outputs[0]) == what_counts(outputs[1]) == what_counts(outputs[2])


def test_grammars_with_forced_tokens_and_ngrams_go_together(make_engine):
    """Those with a grammar have forced tokens alone, beside others that have guesses."""
    params = [
        SamplingParams(temperature=1.0, max_tokens=40, seed=index, structured_outputs=constraint)
        for index, constraint in enumerate(
            [StructuredOutputParams(json=SCHEMA), None, StructuredOutputParams(json=SCHEMA)]
        )
    ]
    prompts = [[*prompt, *prompt] for prompt in make_prompts(3)]
    config = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False, "prompt_lookup_min": 1}
    plain, drafting = (
        make_engine(**options).generate(prompts, params, use_tqdm=False)
        for options in ({}, {"speculative_config": config})
    )
    assert what_counts(plain) == what_counts(drafting)
    assert [output["num_draft_tokens"] > 0 for output in drafting] == [False, True, False]


def test_a_stop_string_among_drafts_ends_the_text_where_it_would_without(make_engine):
    prompts = make_prompts(3)
    engine = make_engine()
    whole = run(engine, prompts, temperature=1.0)
    records = records_of(prompts, whole)
    stop_strings = [whole[0]["text"][6:8], whole[1]["text"][9:10]]
    plain = run(engine, prompts, temperature=1.0, stop_strings=stop_strings)
    assert {output["finish_reason"] for output in plain} >= {"stop"}
    let_draft(engine, lambda: RecordedDrafter(records, VOCAB_SIZE, mistakes=0.0), num_tokens=8)
    assert what_counts(run(engine, prompts, temperature=1.0, stop_strings=stop_strings)) == what_counts(plain)


def test_what_drafts_computed_is_found_in_the_prefix_cache_and_right(make_engine):
    prompts = make_prompts(1, longest=30)
    engine = make_engine()
    plain = run(make_engine(), prompts, temperature=0.0)
    records = records_of(prompts, plain)
    let_draft(engine, lambda: RecordedDrafter(records, VOCAB_SIZE, mistakes=0.4))
    run(engine, prompts, temperature=0.0)
    longer = [[*record, 9] for record in records]
    cached = run(engine, longer, temperature=0.0)
    fresh = run(make_engine(enable_prefix_caching=False), longer, temperature=0.0)
    assert what_counts(cached) == what_counts(fresh)
    assert cached[0]["num_cached_tokens"] == 32


def test_aborted_requests_with_drafts_in_flight_leave_no_block_behind(make_engine):
    prompts = make_prompts(6)
    engine = make_engine()
    let_draft(engine, lambda: RandomDrafter(VOCAB_SIZE))
    ids = engine.add_request(prompts, make_params(6, max_tokens=60))
    for number, request_id in enumerate(ids):
        for _ in range(number):
            engine.step()
        engine.abort([request_id])
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
