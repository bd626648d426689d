"""Whatever the engine does with a constrained request: greedy tokens are those of a loop with the same masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from grammars import BACKENDS, PROMPT, SCHEMA_FOR, greedy_loop, make_matcher, make_params, run

PROMPTS = [PROMPT * 8 + [index] for index in range(4)]
SMALL_CACHE = {"num_kv_blocks": 14, "max_model_len": 200, "enable_prefix_caching": False}
# Settings of an engine that force a way of working upon it.
WAYS = {
    "plain": {},
    "step by step": {"async_scheduling": False},
    "chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    "preempted": SMALL_CACHE,
    "preempted, step by step": {**SMALL_CACHE, "async_scheduling": False},
    "preempted, chunks of 7": {**SMALL_CACHE, "max_num_batched_tokens": 7, "max_num_seqs": 7},
}


@pytest.fixture(scope="module")
def expected(engine: LLMEngine, tiny_llama: Path) -> dict[str, list[list[int]]]:
    """For each library, the tokens after each of `PROMPTS`."""
    found = {}
    for backend in BACKENDS:
        constraint = StructuredOutputParams(json=SCHEMA_FOR[backend])
        matchers = [make_matcher(engine, constraint, backend) for _ in PROMPTS]
        found[backend] = [
            greedy_loop(engine, tiny_llama, matcher, prompt) for matcher, prompt in zip(matchers, PROMPTS, strict=True)
        ]
    return found


@pytest.mark.parametrize("jumps", [True, False], ids=["jumps", "samples all"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_are_those_of_a_loop_with_the_same_masks(make_engine, expected, way, backend, jumps):
    engine = make_engine(structured_output_backend=backend, jump_forward=jumps, **WAYS[way])
    outputs = run(engine, make_params(0.0, max_tokens=150, json=SCHEMA_FOR[backend]), PROMPTS)
    assert [output["token_ids"] for output in outputs] == expected[backend]
    assert [output["num_tokens_output"] for output in outputs] == [len(token_ids) for token_ids in expected[backend]]
    assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])


def test_jumping_takes_fewer_steps(make_engine):
    steps = {}
    for jumps in (True, False):
        engine = make_engine(jump_forward=jumps)
        engine.add_request(PROMPTS, make_params(0.0, json=SCHEMA_FOR["xgrammar"]))
        steps[jumps] = 0
        while not engine.is_finished():
            engine.step()
            steps[jumps] += 1
    assert steps[True] < 0.8 * steps[False]


@pytest.mark.parametrize("way", ["plain", "chunks of 7", "preempted"])
def test_sampled_tokens_are_the_same_with_jumps_and_without(make_engine, way):
    params = [make_params(1.0, max_tokens=150, json=SCHEMA_FOR["llguidance"], seed=seed) for seed in range(4)]
    params += [SamplingParams(temperature=1.0, max_tokens=40, seed=9)]
    prompts = [*PROMPTS, PROMPT]
    tokens = []
    for jumps, ahead in ((True, True), (True, False), (False, True)):
        engine = make_engine(jump_forward=jumps, **{**WAYS[way], "async_scheduling": ahead})
        tokens.append([output["token_ids"] for output in run(engine, params, prompts)])
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_of_one_prompt_are_those_of_requests_by_themselves(make_engine, backend):
    """Each sample has its place in the grammar; with jumps it shares the prompt's blocks all the same."""
    schema = SCHEMA_FOR[backend]
    whole = run(make_engine(structured_output_backend=backend), make_params(json=schema, n=3), [PROMPTS[0]])
    tight = make_engine(structured_output_backend=backend, jump_forward=False, **WAYS["preempted, chunks of 7"])
    assert [o["token_ids"] for o in whole] == [
        o["token_ids"] for o in run(tight, make_params(json=schema, n=3, max_tokens=150), [PROMPTS[0]])
    ]
    assert len({output["text"] for output in whole}) > 1


@pytest.mark.parametrize("jumps", [True, False], ids=["jumps", "samples all"])
def test_a_stop_string_ends_text_inside_a_run_of_forced_tokens(make_engine, jumps):
    engine = make_engine(jump_forward=jumps)
    params = make_params(0.0, json=SCHEMA_FOR["llguidance"])
    (whole,) = run(engine, params)
    (output,) = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"], stop_strings=['"a']))
    assert output["stop_reason"] == '"a'
    assert output["text"] == whole["text"].partition('"a')[0]
    # Usage counts the tokens up to the stop string, not what was forced after it.
    assert output["token_ids"] == whole["token_ids"][: output["num_tokens_output"]]
    assert engine.tokenizer.decode(output["token_ids"][:-1]).count('"a') == 0


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_no_more_tokens_than_asked_for_are_forced(make_engine, engine, max_tokens):
    (whole,) = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"]))
    (output,) = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"], max_tokens=max_tokens))
    assert output["token_ids"] == whole["token_ids"][:max_tokens]
    assert output["finish_reason"] == "length"


def test_requests_that_report_logprobs_sample_every_token(engine):
    params = {"json": SCHEMA_FOR["llguidance"]}
    (plain,) = run(engine, make_params(0.0, **params))
    (output,) = run(engine, make_params(0.0, logprobs=2, **params))
    assert output["token_ids"] == plain["token_ids"]
    assert [entry.token_id for entry in output["logprobs"]] == output["token_ids"]


def test_forced_tokens_count_for_penalties(make_engine):
    params = make_params(0.0, json=SCHEMA_FOR["llguidance"], repetition_penalty=1.4, frequency_penalty=0.8)
    jumped, sampled = (run(make_engine(jump_forward=jumps), params)[0]["token_ids"] for jumps in (True, False))
    assert jumped == sampled


def test_forced_tokens_are_found_in_the_prefix_cache(make_engine):
    engine = make_engine()
    (first,) = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"]))
    longer = PROMPT + first["token_ids"]
    (again,) = run(engine, SamplingParams(temperature=0.0, max_tokens=8), [longer])
    (fresh,) = run(make_engine(enable_prefix_caching=False), SamplingParams(temperature=0.0, max_tokens=8), [longer])
    assert again["num_cached_tokens"] >= 16 * ((len(longer) - 1) // 16 - 1)
    assert again["num_cached_tokens"] > 0
    assert again["token_ids"] == fresh["token_ids"]


def test_text_is_streamed_whole_when_several_tokens_come_at_once(engine):
    news = []
    engine.add_request([PROMPT], make_params(0.0, json=SCHEMA_FOR["llguidance"]), stream_callback=news.append)
    while not engine.is_finished():
        engine.step()
    (whole,) = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"]))
    assert "".join(output.text_delta for output in news) == whole["text"]
    assert [token_id for output in news for token_id in output.output_tokens] == whole["token_ids"]
    assert any(len(output.output_tokens) > 1 for output in news)
