"""Engines that attend to their own requests and share their experts give the tokens of one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines_together import Asked, EnginesTogether, RanksTogether
from shared_ranks import PARAMS, PROMPTS, tokens_of_one_process

SPECULATION = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanksTogether]:
    ranks = RanksTogether(2, 2, tmp_path_factory.mktemp("met"))
    yield ranks
    ranks.end()


@pytest.fixture(scope="module")
def expected(tiny_family: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    return tokens_of_one_process(tiny_family)


def dealt(engines: tuple[int, ...]) -> list[Asked]:
    """All prompts, dealt to these engines in turn."""
    return [
        (engines[place % len(engines)], prompt, params)
        for place, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
    ]


WAYS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "in chunks": {"max_num_batched_tokens": 7},
    "preempted": {"num_kv_blocks": 12, "max_model_len": 176, "enable_prefix_caching": False},
    "without running ahead": {"async_scheduling": False},
    "with experts that move": {
        "enable_eplb": True,
        "eplb_window_size": 3,
        "eplb_step_interval": 5,
        "num_redundant_experts": 4,
    },
    "with rows sent to owners": {"expert_exchange": "all-to-all"},
}
MOVED = WAYS["with experts that move"]
WAYS["with experts that move, and rows sent to owners"] = {**MOVED, "expert_exchange": "all-to-all"}
PAIRS = [
    ("as they are", "qwen3_moe"),
    ("in chunks", "deepseek_v3"),
    ("with experts that move", "qwen3_moe"),
    ("with rows sent to owners", "qwen3_moe"),
]
OTHERS = [(way, family) for way in WAYS for family in ("qwen3_moe", "deepseek_v3") if (way, family) not in PAIRS]
OTHERS += [("as they are", "mixtral"), ("as they are", "gpt_oss")]


@pytest.mark.parametrize(("way", "family"), [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)])
def test_two_engines_of_two_ranks_give_the_tokens_of_one_process(way, family, two_by_two, tiny_family, expected):
    with EnginesTogether(tiny_family(family), two_by_two, **WAYS[way]) as engines:
        assert engines.run(dealt((0, 1))) == expected(family)
        # One of them has nothing to do, or not yet.
        assert engines.run(dealt((1,))) == expected(family)
        assert engines.run(dealt((1, 0, 0)), later={1: 0.05, 4: 0.1}) == expected(family)
        moves = [core.stats().num_expert_moves for core in engines.cores]
        assert [number > 0 for number in moves] == ["experts that move" in way] * 2


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 4])
def test_engines_of_one_rank_give_the_tokens_of_one_process(
    size, exchange, tiny_family, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: size)
    ranks = RanksTogether(size, 1, tmp_path)
    try:
        with EnginesTogether(tiny_family("qwen3_moe"), ranks, expert_exchange=exchange) as engines:
            assert engines.run(dealt(tuple(range(size)))) == expected("qwen3_moe")
            assert engines.run(dealt((size - 1,))) == expected("qwen3_moe")  # the others only take part
    finally:
        ranks.end()


def test_drafts_of_prediction_layers_and_cached_prefixes_change_no_token(two_by_two, tiny_family, expected):
    with EnginesTogether(tiny_family("deepseek_v3"), two_by_two, speculative_config=SPECULATION) as engines:
        for _ in range(2):
            assert engines.run(dealt((0, 1))) == expected("deepseek_v3")
        assert all(core.stats().num_draft_tokens > 20 for core in engines.cores)
