"""For every family: what never changes a token, and tokens equal to those of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams

pytest.importorskip("transformers")

import torch

from atom_models import load_model, open_checkpoint, supported_architectures
from atom_models.requirements import model_requirements
from quantized_checkpoints import QUANTIZED_FAMILIES, plain_twin, write_family
from tiny_architectures import PAST_EVERY_WINDOW, families, reference_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")

# From the prompts of 49 and 52 tokens on past 64, where states are kept, and past the end of a block from each.
NUM_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, max_tokens=16, ignore_eos=True)
# The longest one leaves every window and original rope length behind before the first new token.
LENGTHS = (PAST_EVERY_WINDOW, 1, 9, 49, 16, 64, 7, 52)
# Past all windows, one token, one that ends within a block, and one that ends with a block and a kept state.
ALONE = (0, 1, 3, 5)

MakeEngine = Callable[..., LLMEngine]


def make_prompts() -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in LENGTHS]


def tokens_of(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    seeded = [msgspec.structs.replace(params, seed=100 + sum(prompt)) for prompt in prompts]
    outputs: list[dict[str, Any]] = engine.generate(prompts, seeded, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


def assert_all_blocks_are_back(engine: LLMEngine) -> None:
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


# Only layers that mix tokens see how steps are cut and what is cached. These families have those of another one; what
# else is theirs (experts, norms, activations, rotations) sees a token at a time and its position. So they are held to
# the tokens of transformers, which reads each prompt alone, and to chunks, which take a prompt alone, batches and the
# prefix cache; what else is done to caches is done to theirs in slow tests.
MIXED_AS_IN = {
    **dict.fromkeys(("llama-3.1", "mistral-full", "qwen2", "qwen2_5_vl", "qwen3_vl", "mistral3", "nemotron"), "llama"),
    **dict.fromkeys(("ministral3", "ministral3-text"), "llama"),
    **dict.fromkeys(("qwen2-window", "gemma3-seeing"), "gemma3"),
    **dict.fromkeys(("qwen3_moe-mixed", "qwen3_vl_moe", "mixtral", "minimax_m2", "glm4_moe"), "qwen3_moe"),
    **dict.fromkeys(("deepseek_v2-lite", "kimi_k2", "kimi_k25", "glm4_moe_lite"), "deepseek_v3"),
    **dict.fromkeys(("qwen3_5-text", "qwen3_5_moe", "qwen3_5_moe-text"), "qwen3_5"),
}
FAMILIES = [*families(supported_architectures()), *QUANTIZED_FAMILIES]
OF_OWN_MIXERS = [name for name in FAMILIES if name not in MIXED_AS_IN]
# One for each kind of mixer: where its numbers depend on the batch, draws do so first, and greedy tokens show the rest.
OF_EACH_KIND = ("llama", "gemma3", "gpt_oss", "deepseek_v3", "deepseek_v32", "qwen3_next", "kimi_linear")
of_every_family = pytest.mark.parametrize("folder", FAMILIES, indirect=True, scope="module")
of_every_mixer = pytest.mark.parametrize(
    "folder",
    [pytest.param(name, marks=pytest.mark.slow) if name in MIXED_AS_IN else name for name in FAMILIES],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def folder(
    request: pytest.FixtureRequest, tiny_family: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("quantized"), tiny_family)


@pytest.fixture(scope="module")
def greedy(folder: Path) -> list[list[int]]:
    """What our engine gives to all prompts in one batch, without a prefix cache: held against transformers."""
    with LLMEngine(
        str(folder), dtype="float32", num_kv_blocks=64, num_threads=1, enable_prefix_caching=False
    ) as engine:
        tokens = tokens_of(engine, make_prompts())
        assert_all_blocks_are_back(engine)
    return tokens


def logits_of(folder: Path) -> Callable[[list[int]], torch.Tensor]:
    """Token ids -> the logits of transformers; for a quantized family those of our model of the same plain numbers."""
    if (twin := plain_twin(folder)) != folder:
        ours = load_model(twin, "float32", progress=False)
        return lambda ids: ours.logits([ids])[0]
    model = reference_model(folder)
    return lambda ids: model(torch.tensor([ids])).logits[0]


def test_families_that_are_held_by_another_have_its_kinds_of_mixers(tiny_family: Callable[[str], Path]):
    def kinds(name: str) -> set[tuple[str, bool]]:
        share = model_requirements(open_checkpoint(tiny_family(name))).on_rank(1)
        assert share is not None
        return {(problem.name, bool(getattr(problem, "sliding_window", 0))) for problem in share.work.mixers}

    assert set(MIXED_AS_IN) <= set(FAMILIES)
    assert not MIXED_AS_IN.keys() & set(MIXED_AS_IN.values())
    kept = {name: kinds(name) for name in set(MIXED_AS_IN.values())}
    assert [name for name, other in MIXED_AS_IN.items() if not kinds(name) <= kept[other]] == []


@of_every_family
def test_greedy_tokens_are_those_of_transformers(folder: Path, greedy: list[list[int]]):
    logits = logits_of(folder)
    for prompt, tokens in zip(make_prompts(), greedy, strict=True):
        with torch.inference_mode():
            best = logits(prompt + tokens).argmax(-1).tolist()
        # Each token is what transformers finds best after the same tokens: so its greedy search gives the same.
        assert best[len(prompt) - 1 : -1] == tokens


@pytest.mark.parametrize("folder", OF_OWN_MIXERS, indirect=True, scope="module")
def test_a_prompt_alone_gives_the_tokens_that_it_gives_in_a_batch_of_eight(
    folder: Path, greedy: list[list[int]], make_engine: MakeEngine
):
    engine = make_engine(folder, enable_prefix_caching=False)
    prompts = make_prompts()
    for place in ALONE:
        assert tokens_of(engine, [prompts[place]]) == [greedy[place]]
    assert_all_blocks_are_back(engine)


@of_every_family
def test_chunks_of_seven_change_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    # Where tokens of a picture see each other, a step has room for a whole one: such a model reads text alone here.
    engine = make_engine(folder, max_num_batched_tokens=7, language_model_only=folder.name == "gemma3-seeing")
    prompts = make_prompts()
    assert tokens_of(engine, prompts[:1]) == greedy[:1]
    assert tokens_of(engine, prompts) == greedy


@of_every_mixer
def test_a_warm_prefix_cache_changes_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    engine = make_engine(folder, enable_prefix_caching=True)
    prompts = make_prompts()
    assert tokens_of(engine, prompts) == greedy
    seeded = [msgspec.structs.replace(GREEDY, seed=1) for _ in prompts]
    again = engine.generate(prompts, seeded, use_tqdm=False)
    assert [output["token_ids"] for output in again] == greedy
    # States are kept at multiples of 64 tokens.
    assert again[0]["num_cached_tokens"] >= PAST_EVERY_WINDOW // 64 * 64
    assert_all_blocks_are_back(engine)


@of_every_mixer
def test_a_conversation_goes_on_from_its_own_cache(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    warm, cold = make_engine(folder, enable_prefix_caching=True), make_engine(folder, enable_prefix_caching=False)
    prompt = make_prompts()[0]
    assert tokens_of(warm, [prompt]) == greedy[:1]
    longer = [prompt + greedy[0] + [5, 6, 7], [*prompt[:100], 9, 8], prompt[:49]]
    few = msgspec.structs.replace(GREEDY, max_tokens=16)
    assert tokens_of(warm, longer, few) == tokens_of(cold, longer, few)


@of_every_mixer
def test_preempted_requests_change_no_token(folder: Path, greedy: list[list[int]], make_engine: MakeEngine):
    engine = make_engine(folder, num_kv_blocks=12, max_model_len=192, enable_prefix_caching=False)
    assert tokens_of(engine, make_prompts()) == greedy
    assert engine.stats.num_preemptions > 0
    assert_all_blocks_are_back(engine)


@pytest.mark.parametrize(
    "folder",
    [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in OF_OWN_MIXERS],
    indirect=True,
    scope="module",
)
def test_seeded_sampling_does_not_depend_on_the_batch(folder: Path, make_engine: MakeEngine):
    engine = make_engine(folder, enable_prefix_caching=False)
    prompts = make_prompts()[:5]
    alone = [tokens_of(engine, [prompt], SAMPLED)[0] for prompt in prompts]
    assert tokens_of(engine, prompts, SAMPLED) == alone
    assert tokens_of(make_engine(folder, max_num_batched_tokens=33), prompts, SAMPLED) == alone
