"""On a GPU: graphs and compile levels change no token, however rows are sampled and whenever they arrive."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

pytestmark = pytest.mark.gpu

LENGTHS = (70, 1, 9, 33, 16, 64, 7, 40, 3, 128, 17)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
RANDOM = msgspec.structs.replace(GREEDY, temperature=0.9, seed=5)
FILTERED = msgspec.structs.replace(RANDOM, top_k=20, top_p=0.9)
PENALIZED = msgspec.structs.replace(RANDOM, presence_penalty=0.5, logprobs=2, prompt_logprobs=1)
KINDS = (GREEDY, RANDOM, FILTERED, PENALIZED)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]


def tokens_of(folder: Path, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
    """Tokens of batches of one kind, of all kinds together, and of requests that arrive while others decode."""
    with LLMEngine(str(folder), dtype="float32", num_kv_blocks=256, max_num_seqs=16, **settings) as engine:
        outputs = [output for kind in KINDS for output in engine.generate(prompts, kind, use_tqdm=False)]
        mixed = [KINDS[index % len(KINDS)] for index in range(len(prompts))]
        outputs += engine.generate(prompts, mixed, use_tqdm=False)
        request_ids, found = [], {}
        for prompt, params in zip(prompts, mixed, strict=True):
            request_ids += engine.add_request([prompt], params)
            found |= {output["request_id"]: output for output in engine.step()}
        while not engine.is_finished():
            found |= {output["request_id"]: output for output in engine.step()}
        outputs += [found[request_id] for request_id in request_ids]
        assert [output["error"] for output in outputs] == [None] * len(outputs)
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return [output["token_ids"] for output in outputs]


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_moe"])
def test_graphs_and_compile_levels_draw_the_tokens_of_eager_steps(
    family: str, tiny_family: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    folder = tiny_family(family)
    eager = tokens_of(folder, prompts, enforce_eager=True)
    for level in range(4):
        assert tokens_of(folder, prompts, level=level, cudagraph_mode="full") == eager
