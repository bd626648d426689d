"""Decoders without a file of ours: transformers' layers under our engine give transformers' tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.config import ConfigError

pytest.importorskip("transformers")

import torch
import transformers

from atom_models import supported_architectures
from tiny_decoders import make_decoder

NUM_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, max_tokens=8, ignore_eos=True)
# The longest one leaves every window behind.
LENGTHS = (70, 1, 9, 33, 16, 40, 7, 21)
# Past every window, one token, and one that ends within a block.
ALONE = (0, 1, 3)
# What most users bring, and one of each kind: windows and caps, packed projections, parallel halves, stacked experts,
# norms and positions of other kinds.
USUAL = (
    *("gemma2", "phi3", "cohere2", "olmoe", "olmo2", "olmo3", "granite", "smollm3", "starcoder2", "ernie4_5"),
    *("seed_oss", "hunyuan_v1_dense", "exaone4", "qwen2_moe", "gpt_neox", "biogpt"),
)
OTHERS = (
    *("cohere", "olmo", "gemma", "phi", "glm", "glm4", "helium", "arcee", "apertus", "ministral"),
    *("granitemoe", "ernie4_5_moe", "dots1", "hunyuan_v1_moe", "flex_olmo", "phimoe", "vaultgemma", "nanochat"),
)
WITH_A_FILE = ("llama", "qwen3")

pytestmark = pytest.mark.usefixtures("quiet_transformers")
of_every_decoder = pytest.mark.parametrize(
    "folder",
    [*USUAL, *WITH_A_FILE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
    indirect=True,
    scope="module",
)


def make_prompts() -> list[list[int]]:
    draw = random.Random(12)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]


def tokens_of(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    seeded = [msgspec.structs.replace(params, seed=100 + sum(prompt)) for prompt in prompts]
    outputs: list[dict[str, Any]] = engine.generate(prompts, seeded, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return [output["token_ids"] for output in outputs]


def open_engine(folder: Path, **settings: Any) -> LLMEngine:
    return LLMEngine(str(folder), model_impl="transformers", dtype="float32", num_threads=1, **settings)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[LLMEngine]:
    """With room for all prompts in one step, and no prefix cache."""
    with open_engine(folder, num_kv_blocks=256, enable_prefix_caching=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(folder: Path) -> Iterator[LLMEngine]:
    """With seven tokens a step, a prefix cache, and too few blocks for the prompts that it runs at once."""
    with open_engine(folder, num_kv_blocks=10, max_model_len=128, max_num_batched_tokens=7) as engine:
        yield engine


@pytest.fixture(scope="module")
def greedy(plain: LLMEngine) -> list[list[int]]:
    """What our engine gives to all prompts in one batch: held against transformers."""
    return tokens_of(plain, make_prompts())


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


@of_every_decoder
def test_a_prompt_alone_gives_the_tokens_that_it_gives_in_a_batch(plain: LLMEngine, greedy: list[list[int]]):
    for place in ALONE:
        assert tokens_of(plain, [make_prompts()[place]]) == [greedy[place]]


@of_every_decoder
def test_seeded_sampling_does_not_depend_on_the_batch(plain: LLMEngine, greedy: list[list[int]]):
    prompts = make_prompts()
    drawn = tokens_of(plain, prompts, SAMPLED)
    assert drawn != [tokens[: SAMPLED.max_tokens] for tokens in greedy]
    assert [tokens_of(plain, [prompts[place]], SAMPLED)[0] for place in ALONE] == [drawn[place] for place in ALONE]


@of_every_decoder
def test_chunks_of_seven_and_preemption_change_no_token(narrow: LLMEngine, greedy: list[list[int]]):
    assert tokens_of(narrow, make_prompts()) == greedy
    assert narrow.stats.num_preemptions > 0


@of_every_decoder
def test_a_warm_prefix_cache_changes_no_token(narrow: LLMEngine, greedy: list[list[int]]):
    longest = make_prompts()[0]
    assert tokens_of(narrow, [longest]) == greedy[:1]
    again: list[dict[str, Any]] = narrow.generate([longest], msgspec.structs.replace(GREEDY, seed=1), use_tqdm=False)
    assert again[0]["token_ids"] == greedy[0]
    assert again[0]["num_cached_tokens"] >= LENGTHS[0] // 16 * 16


def test_thirty_types_that_have_no_file_are_held():
    without_a_file = {*USUAL, *OTHERS}
    assert len(without_a_file) == len(USUAL) + len(OTHERS) >= 30
    classes: Any = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert [name for name in without_a_file if classes[name] in supported_architectures()] == []
    assert [name for name in WITH_A_FILE if classes[name] not in supported_architectures()] == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"level": 1}, "level is 1, and transformers' layers"), ({"cudagraph_mode": "full"}, "not captured in graphs")],
)
def test_what_wants_our_own_layers_is_refused_at_start(tmp_path: Path, settings: dict[str, Any], reason: str):
    folder = make_decoder("olmo2", tmp_path)
    with pytest.raises(ConfigError, match=reason):
        LLMEngine(str(folder), **settings)
