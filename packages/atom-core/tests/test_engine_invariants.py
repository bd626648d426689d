"""What never changes a token: batching, chunking, caching, preempting, running ahead."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from atom_core import LLMEngine, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, max_tokens=24, ignore_eos=True)
VARIANTS = ["tiny_llama", "tiny_llama_tied", "tiny_llama3", "tiny_llama2"]


def make_prompts(count: int = 8, *, longest: int = 90) -> list[list[int]]:
    chooser = random.Random(7)
    return [[chooser.randrange(3, 512) for _ in range(chooser.randrange(1, longest))] for _ in range(count)]


def make_params(params: SamplingParams, count: int) -> list[SamplingParams]:
    """The same parameters with a seed for each prompt."""
    return [msgspec.structs.replace(params, seed=100 + index) for index in range(count)]


def tokens_of(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams, **options: Any) -> list[list[int]]:
    outputs = engine.generate(prompts, make_params(params, len(prompts)), use_tqdm=False, **options)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


def alone(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    """Each prompt by itself."""
    each = zip(prompts, make_params(params, len(prompts)), strict=True)
    return [engine.generate([prompt], one, use_tqdm=False)[0]["token_ids"] for prompt, one in each]


# What ties embeddings or scales rotations sees a token at a time: these two differ in how heads share keys and values.
@pytest.mark.parametrize("variant", ["tiny_llama", "tiny_llama2"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_gives_what_each_request_gives_alone(variant, params, make_engine, request):
    engine = make_engine(request.getfixturevalue(variant), enable_prefix_caching=False)
    prompts = make_prompts()
    assert tokens_of(engine, prompts, params) == alone(engine, prompts, params)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budget", [1, 7, 16, 33])
def test_a_prompt_in_chunks_gives_what_it_gives_whole(params, budget, make_engine):
    prompts = make_prompts(4)
    whole = tokens_of(make_engine(max_num_batched_tokens=512), prompts, params)
    assert tokens_of(make_engine(max_num_batched_tokens=budget), prompts, params) == whole


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_prefixes_out_of_the_cache_give_what_computed_ones_give(params, make_engine):
    beginning = make_prompts(1, longest=2)[0] * 70
    prompts = [beginning + prompt for prompt in make_prompts(4, longest=20)]
    without = tokens_of(make_engine(enable_prefix_caching=False), prompts, params)
    cached = make_engine(enable_prefix_caching=True)
    assert tokens_of(cached, prompts, params) == without
    again = cached.generate(prompts, make_params(params, len(prompts)), use_tqdm=False)
    assert [output["token_ids"] for output in again] == without
    assert all(output["num_cached_tokens"] >= 64 for output in again)


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_preempted_requests_give_what_undisturbed_ones_give(params, async_scheduling, make_engine):
    prompts = [prompt + [5] * 30 for prompt in make_prompts(6, longest=30)]
    undisturbed = tokens_of(make_engine(num_kv_blocks=256), prompts, params)
    crowded = make_engine(
        num_kv_blocks=10, max_model_len=128, async_scheduling=async_scheduling, enable_prefix_caching=False
    )
    assert tokens_of(crowded, prompts, params) == undisturbed
    assert crowded.stats.num_preemptions > 0
    assert crowded.stats.num_free_blocks == crowded.stats.num_blocks


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_running_one_step_ahead_gives_what_waiting_gives(params, make_engine):
    prompts = make_prompts()
    waiting = tokens_of(make_engine(async_scheduling=False), prompts, params)
    assert tokens_of(make_engine(async_scheduling=True), prompts, params) == waiting


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(variant, make_engine, request):
    transformers = pytest.importorskip("transformers")
    folder: Path = request.getfixturevalue(variant)
    prompts = list(make_prompts(3, longest=40))
    params = msgspec.structs.replace(GREEDY, max_tokens=64)
    ours = tokens_of(make_engine(folder), prompts, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, tokens in zip(prompts, ours, strict=True):
        with torch.inference_mode():
            whole = torch.tensor([prompt + tokens])
            best = model(whole).logits[0].argmax(-1).tolist()
        # Each token is what transformers finds best after the same tokens: so its greedy search gives the same.
        assert best[len(prompt) - 1 : -1] == tokens


def test_an_arrival_in_the_middle_changes_no_tokens(make_engine):
    prompts = make_prompts(6)
    expected = tokens_of(make_engine(), prompts, SAMPLED)
    engine = make_engine(max_num_batched_tokens=32)
    request_ids: list[str] = []
    found: dict[str, list[int]] = {}
    for prompt, params in zip(prompts, make_params(SAMPLED, 6), strict=True):
        request_ids += engine.add_request([prompt], params)
        for _ in range(3):
            found.update({output["request_id"]: output["token_ids"] for output in engine.step()})
    while not engine.is_finished():
        found.update({output["request_id"]: output["token_ids"] for output in engine.step()})
    assert [found[request_id] for request_id in request_ids] == expected
