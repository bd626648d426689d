"""Decoders without a file of ours: transformers' layers under our engine give transformers' tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.config import ConfigError

pytest.importorskip("transformers")

import torch
import transformers

from tiny_decoders import make_decoder

pytestmark = pytest.mark.usefixtures("quiet_transformers")

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
# The longest one leaves every window behind.
LENGTHS = (70, 1, 9, 33, 16, 40, 7, 21)
# One of each kind: windows and caps, packed projections, parallel halves, stacked experts, and two that have a file.
USUAL = ("gemma2", "phi3", "cohere2", "olmoe", "llama")
OTHERS = (
    *("olmo2", "olmo3", "granite", "smollm3", "starcoder2", "ernie4_5", "seed_oss", "hunyuan_v1_dense", "exaone4"),
    *("qwen3", "cohere", "olmo", "gemma", "phi", "glm", "glm4", "helium", "arcee", "apertus", "ministral"),
    *("ministral3", "granitemoe", "ernie4_5_moe", "dots1", "hunyuan_v1_moe", "flex_olmo", "phimoe", "qwen2_moe"),
    *("vaultgemma", "nanochat", "gpt_neox", "biogpt"),
)

MakeEngine = Callable[..., LLMEngine]


def make_prompts() -> list[list[int]]:
    draw = random.Random(12)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]


def tokens_of(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    outputs: list[dict[str, Any]] = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


# Attention alone sees what is cached and who waits, and it is the same paged layer for all: what else a decoder has
# sees a token at a time. So the others are held to chunks, and in a batch to the tokens of transformers, which reads
# each prompt alone, in slow tests.
of_every_decoder = pytest.mark.parametrize(
    "folder",
    [*USUAL, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)],
    indirect=True,
    scope="module",
)
of_usual_decoders = pytest.mark.parametrize("folder", USUAL, indirect=True, scope="module")


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def greedy(folder: Path) -> list[list[int]]:
    """What our engine gives to all prompts in one batch, without a prefix cache: held against transformers."""
    settings: dict[str, Any] = {"model_impl": "transformers", "dtype": "float32", "num_kv_blocks": 256}
    with LLMEngine(str(folder), num_threads=1, enable_prefix_caching=False, **settings) as engine:
        tokens = tokens_of(engine, make_prompts())
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return tokens


@of_every_decoder
def test_tokens_are_those_of_transformers(folder: Path, greedy: list[list[int]]):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for prompt, tokens in zip(make_prompts(), greedy, strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([prompt + tokens])).logits[0].argmax(-1).tolist()
        # Each token is what transformers finds best after the same tokens: so its greedy search gives the same.
        assert best[len(prompt) - 1 : -1] == tokens


@of_usual_decoders
def test_a_prompt_alone_gives_the_tokens_that_it_gives_in_a_batch(
    folder: Path, greedy: list[list[int]], make_engine: MakeEngine
):
    engine = make_engine(folder, model_impl="transformers", enable_prefix_caching=False)
    assert [tokens_of(engine, [prompt])[0] for prompt in make_prompts()[:3]] == greedy[:3]


@of_every_decoder
def test_chunks_of_seven_change_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    assert tokens_of(make_engine(folder, model_impl="transformers", max_num_batched_tokens=7), make_prompts()) == greedy


@of_usual_decoders
def test_a_warm_prefix_cache_changes_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    engine = make_engine(folder, model_impl="transformers")
    assert tokens_of(engine, make_prompts()) == greedy
    again = engine.generate(make_prompts(), msgspec.structs.replace(GREEDY, seed=1), use_tqdm=False)
    assert [output["token_ids"] for output in again] == greedy
    assert again[0]["num_cached_tokens"] >= LENGTHS[0] // 16 * 16
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"level": 1}, "level is 1, and transformers' layers"), ({"cudagraph_mode": "full"}, "not captured in graphs")],
)
def test_what_wants_our_own_layers_is_refused_at_start(tmp_path: Path, settings: dict[str, Any], reason: str):
    folder = make_decoder("olmo2", tmp_path)
    with pytest.raises(ConfigError, match=reason):
        LLMEngine(str(folder), **settings)


@pytest.mark.slow
@of_usual_decoders
def test_preempted_requests_change_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    engine = make_engine(
        folder, model_impl="transformers", num_kv_blocks=10, max_model_len=128, enable_prefix_caching=False
    )
    assert tokens_of(engine, make_prompts()) == greedy
    assert engine.stats.num_preemptions > 0
