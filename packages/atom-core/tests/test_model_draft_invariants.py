"""Drafts of a model change no token, whatever is asked for and however the engine has to work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from asked_for import ASKED, VOCAB_SIZE, WAYS, WAYS_AND_ASKED, make_params, make_prompts, run, what_counts
from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.config import EngineConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.executor import InlineExecutor
from atom_core.messages import ModelOutput
from atom_core.worker.model.loading_with_cache import LoadModel
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.runner import Masks, PendingOutput
from toy_drafts import LastTokenTarget, ToyDraft, config_of, let_draft, load_last_token, load_with_draft

SMALL: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 32, "num_threads": 1, "seed": 0}
# The tokens that "few allowed" allows are guessed, so that some guesses are right.
FEW = [5, 6, 7, 8]
TEMPERATURES = [0.0, 0.3, 1.0, 2.0]


@pytest.fixture
def make_drafting(make_engine, tiny_llama: Path):
    """``make_drafting(load, **options)``: an engine with the model that `load` gives."""

    def make(load: Any = None, *, num_drafts: int = 3, adaptive: bool = False, **options: Any) -> LLMEngine:
        load = load or partial(load_with_draft, partial(ToyDraft, kept=FEW))
        engine = make_engine(**options)
        config = config_of(tiny_llama, num_drafts=num_drafts, adaptive=adaptive, **(SMALL | options))
        let_draft(engine, config, load)
        return engine

    return make


def without_drafts(engine: LLMEngine, load: Any, folder: Path) -> LLMEngine:
    """The engine with the same model, and no draft."""

    let_draft(engine, replace(config_of(folder, **SMALL), speculation=None), load)
    return engine


@pytest.fixture(scope="module")
def plain(engine: LLMEngine) -> Callable[[str], list[dict[str, Any]]]:
    """``plain(asked)``: what five prompts give without drafts, in no way but the plain one."""
    return cache(lambda asked: run(engine, make_prompts(5), **ASKED[asked]))


@pytest.mark.parametrize(("way", "asked"), WAYS_AND_ASKED)
def test_drafts_of_a_model_change_nothing(make_drafting, plain, way, asked):
    engine = make_drafting(**WAYS[way])
    assert what_counts(run(engine, make_prompts(5), **ASKED[asked])) == what_counts(plain(asked))
    stats = engine.stats
    assert stats.num_draft_tokens > 40
    assert asked != "few allowed" or stats.num_accepted_tokens > 5
    assert (stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("batch_size", range(1, 9))
def test_drafts_of_a_model_change_nothing_in_any_batch(make_engine, make_drafting, batch_size):
    prompts = make_prompts(batch_size)
    plain = run(make_engine(), prompts, temperature=0.8, allowed_token_ids=FEW)
    engine = make_drafting(num_drafts=5, adaptive=batch_size % 2 == 0)
    assert what_counts(run(engine, prompts, temperature=0.8, allowed_token_ids=FEW)) == what_counts(plain)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("is_random", [False, True])
def test_a_model_that_agrees_or_guesses_anything_changes_nothing(
    make_engine, make_drafting, tiny_llama, temperature, is_random
):
    load = partial(load_last_token, certainty=7.0, is_random=is_random)
    prompts = make_prompts(6)
    plain = run(without_drafts(make_engine(), load, tiny_llama), prompts, temperature=temperature)
    engine = make_drafting(load)
    assert what_counts(run(engine, prompts, temperature=temperature)) == what_counts(plain)
    stats = engine.stats
    if is_random:
        assert stats.num_accepted_tokens < 0.1 * stats.num_draft_tokens
    elif temperature in (0.0, 0.3):
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    else:
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_a_model_that_always_agrees_saves_as_many_steps_as_it_makes_drafts(make_drafting, num_drafts):
    engine = make_drafting(load_last_token, num_drafts=num_drafts)
    engine.add_request(make_prompts(3), make_params(3, temperature=0.0, max_tokens=1 + 8 * (1 + num_drafts)))
    num_steps = 0
    while not engine.is_finished():
        num_steps += engine._core._scheduler.stats().num_running > 0
        engine.step()
    stats = engine.stats
    assert stats.num_accepted_tokens == stats.num_draft_tokens == 3 * 8 * num_drafts
    assert stats.num_drafts == 3 * 8
    # A step is submitted, and then its results are taken: nothing runs ahead.
    assert num_steps <= 2 * (1 + 8)


def test_the_next_step_is_submitted_before_anybody_hears_of_the_one_whose_drafts_it_has(make_drafting):
    engine = make_drafting(load_last_token)
    engine.add_request(make_prompts(3), make_params(3, temperature=0.0, max_tokens=20))
    num_in_flight = []
    while not engine.is_finished():
        engine.step()
        num_in_flight.append(len(engine._core._in_flight))
    assert num_in_flight[:-1] == [1] * (len(num_in_flight) - 1)


def test_the_tokens_after_accepted_and_after_rejected_drafts_follow_their_distribution(make_drafting):
    """By chi-square: the token after each of four, over 4,000 draws of three tokens each."""
    certainty, temperature = 1.5, 1.0
    engine = make_drafting(partial(load_last_token, certainty=certainty))
    order = LastTokenTarget(VOCAB_SIZE, certainty).table.argmax(1)
    # A draft is right where the permutation stays within the four tokens.
    first = next(token for token in range(3, VOCAB_SIZE) if int(order[token]) != token)
    allowed = sorted({first, int(order[first]), int(order[order[first]]), 3 if first != 3 else 4})
    outputs = run(engine, [[first]] * 4000, temperature=temperature, max_tokens=3, allowed_token_ids=allowed)
    assert engine.stats.num_accepted_tokens > 500
    for place in range(1, 3):
        for before in allowed:
            came = [output["token_ids"][place] for output in outputs if output["token_ids"][place - 1] == before]
            logits = torch.tensor([certainty if int(order[before]) == token else 0.0 for token in allowed])
            expected = torch.softmax(logits.double() / temperature, 0) * len(came)
            counts = torch.tensor([came.count(token) for token in allowed])
            # One in 10,000 draws of a chi-square distribution with 3 degrees of freedom is above.
            assert float(((counts - expected) ** 2 / expected).sum()) < 21.1


# --- what a draft model keeps ----------------------------------------------------------------------------------------


class RecordingRunner(ModelRunner):
    """Remembers the drafts of each request."""

    def __init__(self, config: EngineConfig, load_model: LoadModel) -> None:
        super().__init__(config, load_model)
        self.drafts: dict[str, list[tuple[int, ...]]] = {}

    def sample(self, masks: Masks | None = None) -> PendingOutput:
        report = super().sample(masks)

        def record() -> ModelOutput:
            output = report()
            for result in output.requests:
                if result.next_draft_token_ids:
                    self.drafts.setdefault(result.request_id, []).append(result.next_draft_token_ids)
            return output

        return record


def record_drafts(engine: LLMEngine, folder: Path, **options: Any) -> RecordingRunner:
    config = config_of(folder, num_drafts=4, **(SMALL | options))
    runner = RecordingRunner(config, partial(load_with_draft, ToyDraft))
    engine._core.close()
    engine._core = EngineCore(config, InlineExecutor(runner))
    return runner


def drafts_of(engine: LLMEngine, runner: RecordingRunner, prompt: list[int], **asked: Any):
    """All drafts of a request, and how many of its tokens were cached."""
    runner.drafts.clear()
    [output] = run(engine, [prompt], **{"temperature": 0.0, "max_tokens": 20} | asked)
    [drafts] = runner.drafts.values()
    return drafts, output["num_cached_tokens"]


@pytest.mark.parametrize(("num_shared", "num_cached"), [(31, 16), (32, 16), (33, 32), (40, 32)])
def test_drafts_after_a_prefix_hit_are_those_without_it(make_engine, tiny_llama, num_shared, num_cached):
    """Prompts that part before the end of a block, right at it, and behind it."""
    [first, other] = [prompt * 20 for prompt in make_prompts(2)]
    prompt = [*first[:num_shared], *[(token + 1) % 500 for token in first[num_shared : num_shared + 1]], *other[:9]]
    engine = make_engine()
    expected, none = drafts_of(engine, record_drafts(engine, tiny_llama, enable_prefix_caching=False), prompt)
    runner = record_drafts(engine, tiny_llama)
    drafts_of(engine, runner, first[:50])
    assert drafts_of(engine, runner, prompt) == (expected, num_cached)
    assert none == 0


@pytest.mark.parametrize("budget", [2, 5, 16, 33])
def test_drafts_of_a_prompt_in_chunks_are_those_of_a_prompt_in_one_step(make_engine, tiny_llama, budget):
    prompt = (make_prompts(1)[0] * 9)[:45]
    engine = make_engine()
    whole, _ = drafts_of(engine, record_drafts(engine, tiny_llama), prompt)
    runner = record_drafts(engine, tiny_llama, max_num_batched_tokens=budget, max_num_seqs=2)
    chunked, _ = drafts_of(engine, runner, prompt)
    assert len(whole) > 3
    # A step has room for so many, beside the token that they follow.
    assert chunked == [drafts[: budget - 1] for drafts in whole]


def test_what_is_cached_of_generated_text_serves_a_draft(make_engine, tiny_llama):
    prompt = make_prompts(1)[0][:20]
    engine = make_engine()
    runner = record_drafts(engine, tiny_llama)
    [output] = run(engine, [prompt], temperature=0.0, max_tokens=40)
    longer = [*prompt, *output["token_ids"], 9, 8]
    cached, num_cached = drafts_of(engine, runner, longer)
    assert num_cached >= 48
    fresh, _ = drafts_of(engine, record_drafts(engine, tiny_llama, enable_prefix_caching=False), longer)
    assert cached == fresh


def test_prompts_that_were_embedded_serve_a_draft(make_engine, tiny_llama):
    prompt = (make_prompts(1)[0] * 9)[:45]
    engine = make_engine()
    plain = engine.embed([prompt])
    runner = record_drafts(engine, tiny_llama)
    expected, _ = drafts_of(engine, runner, prompt)
    runner = record_drafts(engine, tiny_llama)
    assert engine.embed([prompt]) == plain
    assert drafts_of(engine, runner, prompt) == (expected, 32)


# --- beside others ---------------------------------------------------------------------------------------------------


def test_a_grammar_has_no_drafts_of_a_model_and_others_beside_it_have(make_engine, make_drafting):
    params = [
        SamplingParams(temperature=1.0, max_tokens=20, seed=index, structured_outputs=constraint)
        for index, constraint in enumerate([StructuredOutputParams(regex="[ab]{12}c"), None])
    ]
    prompts = make_prompts(2)
    plain, drafting = (engine.generate(prompts, params, use_tqdm=False) for engine in (make_engine(), make_drafting()))
    assert what_counts(plain) == what_counts(drafting)
    assert [output["num_draft_tokens"] > 0 for output in drafting] == [False, True]


def test_a_stop_string_among_a_models_drafts_ends_the_text_where_it_would_without(
    make_engine, make_drafting, tiny_llama
):
    prompts = make_prompts(3)
    engine = without_drafts(make_engine(), load_last_token, tiny_llama)
    whole = run(engine, prompts, temperature=0.0)
    stop_strings = [whole[0]["text"][6:8], whole[1]["text"][9:10]]
    plain = run(engine, prompts, temperature=0.0, stop_strings=stop_strings)
    assert "stop" in {output["finish_reason"] for output in plain}
    drafting = make_drafting(load_last_token, num_drafts=8)
    assert what_counts(run(drafting, prompts, temperature=0.0, stop_strings=stop_strings)) == what_counts(plain)


def test_aborted_requests_with_a_models_drafts_leave_no_block_behind(make_drafting):
    engine = make_drafting()
    ids = engine.add_request(make_prompts(6), make_params(6, max_tokens=60))
    for number, request_id in enumerate(ids):
        for _ in range(number):
            engine.step()
        engine.abort([request_id])
    while not engine.is_finished():
        engine.step()
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_a_models_drafts_are_counted_as_others_are(make_drafting, capsys):
    engine = make_drafting(load_last_token)
    outputs = run(engine, make_prompts(3), temperature=1.0)
    stats = engine.stats
    assert stats.num_draft_tokens == sum(output["num_draft_tokens"] for output in outputs) > 0
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
    assert len(stats.num_accepted_tokens_per_pos) == 3
    engine.print_mtp_statistics()
    assert f"Accepted tokens: {stats.num_accepted_tokens}" in capsys.readouterr().out
