"""Prompts of models that keep states are cut where a hand-over leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import Pages, Slots
from fake_states import let_keep_states
from fake_worker import FakeEngine

MakeEngine = Callable[..., LLMEngine]


def make_scheduler(**limits: Any) -> FakeEngine:
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "max_model_len": 512, "async_scheduling": False}
    cache = KVCacheConfig(
        num_blocks=256, block_size=4, groups=(Pages(), Slots()), num_slots=8, enable_prefix_caching=False
    )
    return let_keep_states(FakeEngine(Scheduler(SchedulerConfig(**config | limits), cache), 256, 4, 0))


def make_request(name: str, num_tokens: int, max_tokens: int = 1) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id=name, token_ids=[7 + i % 50 for i in range(num_tokens)], sampling_params=params)


def ends(engine: FakeEngine, name: str) -> list[int]:
    entries = [entry for step in engine.steps for entry in step.scheduled if entry.request_id == name]
    return [entry.num_computed_tokens + entry.num_new_tokens for entry in entries]


def test_a_prompt_is_cut_at_multiples_of_64():
    engine = make_scheduler()
    engine.add(make_request("a", 300))
    engine.run()
    assert ends(engine, "a") == [64, 128, 192, 256, 300]


def test_prompts_that_share_a_step_are_cut_at_multiples_of_64_too():
    engine = make_scheduler(max_num_batched_tokens=300)
    engine.add(make_request("a", 210), make_request("b", 210), make_request("c", 210))
    engine.run()
    for name in "abc":
        assert all(end % 64 == 0 for end in ends(engine, name)[:-1])
        assert ends(engine, name)[-1] == 210


def test_a_prompt_that_waits_for_room_is_not_overtaken():
    engine = make_scheduler(max_num_batched_tokens=72)
    engine.add(make_request("a", 40), make_request("b", 70), make_request("c", 5))
    engine.submit()
    assert [entry.request_id for entry in engine.steps[-1].scheduled] == ["a"]
    engine.report()
    engine.submit()
    assert [entry.request_id for entry in engine.steps[-1].scheduled] == ["b", "c"]


def test_steps_without_room_for_64_tokens_beside_decodes_cut_anywhere():
    engine = make_scheduler(max_num_batched_tokens=71)
    engine.add(make_request("a", 80))
    engine.run()
    assert ends(engine, "a") == [71, 80]


@pytest.mark.parametrize("budget", [120, 200])
def test_a_prompt_in_chunks_leaves_every_bit_of_a_whole_one(
    tiny_family: Callable[[str], Path], make_engine: MakeEngine, budget: int
):
    draw = random.Random(5)
    prompt = [draw.randrange(3, 384) for _ in range(333)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    folder = tiny_family("qwen3_next")
    outputs = [
        make_engine(folder, max_num_batched_tokens=size).generate([prompt], params, use_tqdm=False)[0]
        for size in (512, budget)
    ]
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"]
    assert outputs[0]["logprobs"] == outputs[1]["logprobs"]
