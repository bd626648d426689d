"""Two stages in processes of their own give what one process gives, whatever is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import SamplingParams
from atom_core.messages import StructuredOutputParams
from shared_ranks import (
    PARAMS,
    PROMPTS,
    SharedRanks,
    assert_ranks_change_no_token,
    make_engine,
    numbers_of,
    outputs,
    tokens_of_one_process,
)
from tiny_models import make_tiny_llama

# One of each way through attention, and through what a stage has: heads, experts, latents, a table that is tied.
KINDS = ["llama", "qwen3_moe", "deepseek_v3"]
# Windows make groups of layers, and delta nets keep states: a stage has some layers of each. A stage has whole layers,
# so what else a family has is the same in one: test_stages.py of atom-models has the logits where none keeps states.
QUICK = [*KINDS, "gemma3", "qwen3_next"]
OTHERS = ["gpt_oss", "deepseek_v32", "kimi_linear", "qwen3_5", "qwen3_5-text", "qwen3_5_moe", "qwen3_5_moe-text"]


@pytest.fixture(scope="module")
def stages() -> Iterator[SharedRanks]:
    processes = SharedRanks(pipeline_parallel_size=2)
    yield processes
    processes.end()


@pytest.fixture(scope="module")
def expected(tiny_family: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The tokens of one process, by family."""
    return tokens_of_one_process(tiny_family)


@pytest.mark.parametrize("family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_two_stages_give_the_tokens_of_one_process_also_from_cached_prefixes(family, stages, tiny_family, expected):
    with make_engine(tiny_family(family), stages) as engine:
        assert outputs(engine) == expected(family)
        again = engine.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output["token_ids"] for output in again] == expected(family)
        assert again[0]["num_cached_tokens"] >= 64


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 7},
        {"num_kv_blocks": 12, "max_model_len": 176, "enable_prefix_caching": False},
        {"async_scheduling": False},
    ],
    ids=["in chunks", "preempted", "one batch at a time"],
)
@pytest.mark.parametrize("family", [KINDS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS[1:])])
def test_how_steps_are_cut_changes_no_token_of_two_stages(family, settings, stages, tiny_family, expected):
    with make_engine(tiny_family(family), stages, **settings) as engine:
        assert outputs(engine) == expected(family)
        assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in settings)


def test_two_stages_share_a_tied_table(stages, tmp_path):
    assert_ranks_change_no_token(make_tiny_llama(tmp_path / "model", tie=True), stages)


def test_an_aborted_request_leaves_the_others_as_they_are(stages, tiny_family, expected):
    with make_engine(tiny_family("llama"), stages) as engine:
        ids = engine.add_request(PROMPTS, PARAMS)
        finished: dict[str, Any] = {}
        for _ in range(5):
            finished |= {output["request_id"]: output for output in engine.step()}
        engine.abort(ids[:2])
        while not engine.is_finished():
            finished |= {output["request_id"]: output for output in engine.step()}
        assert [finished[name]["token_ids"] for name in ids[2:]] == expected("llama")[2:]
        assert not finished.keys() & set(ids[:2])
        assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("adaptive", [True, False])
def test_guesses_by_tokens_alone_change_no_token_of_two_stages(adaptive, stages, tiny_family, expected):
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": adaptive}
    with make_engine(tiny_family("llama"), stages, speculative_config=speculation) as engine:
        assert outputs(engine) == expected("llama")
        assert engine.stats.num_draft_tokens > 0 or adaptive


def test_two_stages_follow_grammars_and_penalties_and_judge_prompts(stages, tiny_llama):
    """Log-probabilities tell what tokens alone would not: that the first stage has the tokens that were sampled."""
    shared = SamplingParams(temperature=0.8, seed=3, max_tokens=30, logprobs=1)
    changes = [
        {"structured_outputs": StructuredOutputParams(regex="(abab){3}[ab]{5}")},
        {"repetition_penalty": 1.5, "logit_bias": {5: 4.0}, "prompt_logprobs": 1},
        {"structured_outputs": StructuredOutputParams(regex="[cd]{9}")},
    ]
    params = [msgspec.structs.replace(shared, **change) for change in changes]
    found = []
    for where in (None, stages):
        with make_engine(tiny_llama, where) as engine:
            found.append(engine.generate(["once", "a b", "more"], params, use_tqdm=False))
            found[-1].append(engine.embed([PROMPTS[3]])[0])
    for one, two in zip(found[0][:3], found[1][:3], strict=True):
        assert two["text"] == one["text"]
        assert numbers_of(two["logprobs"]) == pytest.approx(numbers_of(one["logprobs"]), abs=1e-5)
    prompts = [numbers_of(answers[1]["prompt_logprobs"]) for answers in found]
    assert prompts[1] == pytest.approx(prompts[0], abs=1e-5)
    assert found[1][3] == pytest.approx(found[0][3], abs=1e-6)


@pytest.mark.slow  # four processes are started
@pytest.mark.parametrize("num_context_ranks", [1, pytest.param(2, marks=pytest.mark.by_hand)])
def test_stages_of_two_ranks_each_give_the_tokens_of_one_process(num_context_ranks, tiny_family, expected):
    """With latents, of which each rank of a stage holds all or half, and heads and experts, of which it holds half."""
    sizes = {"tensor_parallel_size": 2, "decode_context_parallel_size": num_context_ranks}
    with make_engine(tiny_family("deepseek_v3"), pipeline_parallel_size=2, **sizes) as engine:
        assert outputs(engine) == expected("deepseek_v3")


@pytest.mark.slow
def test_three_stages_give_the_tokens_of_one_process(tiny_family, expected):
    with make_engine(tiny_family("deepseek_v3"), pipeline_parallel_size=3) as engine:
        assert outputs(engine) == expected("deepseek_v3")


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 3])
def test_two_stages_of_a_compiled_model_give_the_tokens_of_one_process(level, stages, tiny_family, expected):
    with make_engine(tiny_family("llama"), stages, level=level) as engine:
        assert outputs(engine) == expected("llama")
