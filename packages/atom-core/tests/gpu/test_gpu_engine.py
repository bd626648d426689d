"""On a GPU: captured graphs change no token of any family, and a long random run loses nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

import torch

from atom_models import supported_architectures
from tiny_architectures import PAST_EVERY_WINDOW, families, reference_model

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
LENGTHS = (PAST_EVERY_WINDOW, 1, 9, 33, 16, 64, 7, 40, 3, 128, 17)
NUM_REQUESTS = 2000
LONGEST_PROMPT = 8000


@pytest.fixture(scope="module", params=families(supported_architectures()))
def folder(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path]) -> Path:
    return tiny_family(request.param)


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


def tokens_of(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    outputs: list[dict[str, Any]] = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


def test_graphs_and_eager_steps_give_the_tokens_of_transformers(folder: Path) -> None:
    prompts = prompts_of(LENGTHS)
    with LLMEngine(str(folder), dtype="float32", enforce_eager=True, num_kv_blocks=256) as engine:
        eager = tokens_of(engine, prompts)
    with LLMEngine(str(folder), dtype="float32", num_kv_blocks=256, max_num_seqs=16) as engine:
        assert tokens_of(engine, prompts) == eager
        assert [tokens_of(engine, [prompt])[0] for prompt in prompts[:3]] == eager[:3]
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    model = reference_model(folder).cuda()
    for prompt, tokens in zip(prompts, eager, strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([prompt + tokens], device="cuda")).logits[0].argmax(-1).tolist()
        assert best[len(prompt) - 1 : -1] == tokens


@dataclass
class Soak:
    """Random requests that arrive over time, some of which are aborted half-way."""

    engine: LLMEngine
    draw: random.Random = field(default_factory=lambda: random.Random(17))
    finished: dict[str, list[int]] = field(default_factory=dict)
    prompts: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stems = [self._tokens(size) for size in (64, 600, 3000)]

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(3, 384) for _ in range(count)]

    def add(self) -> None:
        length = round(LONGEST_PROMPT ** self.draw.random())
        stem = self.draw.choice(self.stems) if self.draw.random() < 0.4 else []
        prompt = (stem + self._tokens(length))[:LONGEST_PROMPT]
        count = self.draw.randrange(1, 48)
        [request_id] = self.engine.add_request(
            [prompt], SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        )
        self.prompts[request_id] = (prompt, count)

    def step(self) -> None:
        for output in self.engine.step():
            assert output["error"] is None
            self.finished[output["request_id"]] = output["token_ids"]
        running = [name for name in self.prompts if name not in self.finished and name not in self.aborted]
        if running and self.draw.random() < 0.02:
            victim = self.draw.choice(running)
            self.engine.abort([victim])
            self.aborted.add(victim)


@pytest.fixture(scope="module")
def tiny_long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("soak") / "llama", max_position=8192, seed=7)


def test_two_thousand_random_requests_end_with_every_block_free(tiny_long_llama: Path) -> None:
    settings = {"dtype": "float32", "max_model_len": 8192, "max_num_batched_tokens": 4096, "max_num_seqs": 64}
    with LLMEngine(str(tiny_long_llama), num_kv_blocks=1600, **settings) as engine:
        soak = Soak(engine)
        while len(soak.prompts) < NUM_REQUESTS or not engine.is_finished():
            for _ in range(soak.draw.randrange(4)):
                if len(soak.prompts) < NUM_REQUESTS:
                    soak.add()
            soak.step()
        stats = engine.stats
        assert len(soak.finished) + len(soak.aborted) == NUM_REQUESTS
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.num_preemptions > 0
    sample = random.Random(3).sample(sorted(soak.finished), 60)
    with LLMEngine(str(tiny_long_llama), num_kv_blocks=1600, enable_prefix_caching=False, **settings) as engine:
        for request_id in sample:
            prompt, count = soak.prompts[request_id]
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
            [alone] = engine.generate([prompt], params, use_tqdm=False)
            assert alone["token_ids"] == soak.finished[request_id]
