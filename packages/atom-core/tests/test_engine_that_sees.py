"""Prompts with pictures: what never changes a token, and tokens equal to those of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from atom_core import LLMEngine, SamplingParams
from atom_core.engine.inputs.fitted_images import as_image
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image
from atom_models.vision.spec import VisionSpec
from atom_models.vision.tower import VisionTower
from atom_models.vision.towers.qwen3_vl import Qwen3VLVisionTower
from running_engines import running
from seeing_models import END, IMAGE, START, around, make_seeing, picture, tokens_of_transformers

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
FIRST, SECOND, LONG = picture(1), picture(2, 3, 3), picture(3, 8, 8)
PROMPTS = [
    around([5, 6, 7], FIRST, [8, 9, 10, 11], SECOND, [12]),
    around([5, 6, 7], picture(4), [8, 9, 10, 11], SECOND, [12]),
    around(LONG, [21, 22]),
    around([30] * 20),
    around([5, 6, 7], FIRST, [8, 9, 10, 11], SECOND, [12, 13, 14]),
    around(FIRST, FIRST, [40]),
    around([33, 34, 35]),
    around(SECOND, [9] * 30, LONG, [7]),
]
GIVEN = [{"prompt_token_ids": tokens, "images": images} for tokens, images in PROMPTS]
PICTURES = {image.digest for _, images in PROMPTS for image in images}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing(tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call of the tower had."""
    calls: list[int] = []
    encode = Qwen3VLVisionTower.encode

    def spy(tower: VisionTower, pictures: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(len(pictures))
        return encode(tower, pictures)

    monkeypatch.setattr(Qwen3VLVisionTower, "encode", spy)
    return calls


MakeEngine = Callable[..., LLMEngine]


@pytest.fixture
def make_engine(seeing: Path) -> Iterator[MakeEngine]:
    made: list[LLMEngine] = []

    def make(**settings: Any) -> LLMEngine:
        given = {"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "skip_tokenizer_init": True, "seed": 0}
        made.append(LLMEngine(str(seeing), **given | settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def tokens_of(engine: LLMEngine, prompts: Sequence[Any] = GIVEN, params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = engine.generate(list(prompts), params, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return [output["token_ids"] for output in outputs]


@pytest.fixture(scope="module")
def expected(seeing: Path) -> list[list[int]]:
    """What each prompt gives alone, without a prefix cache: held against transformers."""
    settings = {"dtype": "float32", "num_kv_blocks": 64, "num_threads": 1, "skip_tokenizer_init": True}
    with LLMEngine(str(seeing), enable_prefix_caching=False, image_cache_memory=0, **settings) as engine:
        return [tokens_of(engine, [prompt])[0] for prompt in GIVEN]


def test_each_prompt_alone_gives_the_tokens_of_transformers(seeing: Path, expected: list[list[int]]) -> None:
    assert expected == tokens_of_transformers(seeing, PROMPTS, GREEDY.max_tokens)


def test_a_batch_a_warm_cache_and_samples_change_no_token(
    make_engine: MakeEngine, expected: list[list[int]], encoded: list[int]
) -> None:
    engine = make_engine()
    assert engine.info.images is not None
    assert tokens_of(engine) == expected
    assert sum(encoded) == len(PICTURES)
    again = engine.generate(GIVEN, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in again] == expected
    # It ends inside a picture where a block does, and behind one where another block does.
    assert [output["num_cached_tokens"] for output in again] == [32, 32, 64, 16, 32, 48, 0, 96]
    assert sum(encoded) == len(PICTURES)
    three = engine.generate(GIVEN[:1], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, n=3))
    assert [output["token_ids"] for output in three] == expected[:1] * 3
    assert sum(encoded) == len(PICTURES)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert tokens_of(engine, GIVEN[:2]) == expected[:2]
    assert sum(encoded) == len(PICTURES) + 2 * len({FIRST.digest, SECOND.digest, picture(4).digest})


@pytest.mark.parametrize("cache_bytes", [0, 256 << 20])
def test_chunks_that_end_inside_pictures_change_no_token_and_each_picture_is_encoded_once(
    make_engine: MakeEngine, expected: list[list[int]], encoded: list[int], cache_bytes: int
) -> None:
    engine = make_engine(
        max_num_batched_tokens=7, max_num_seqs=2, enable_prefix_caching=False, image_cache_memory=cache_bytes
    )
    assert tokens_of(engine) == expected
    # Without a cache a picture that comes again is encoded again, but never for the next part of its tokens.
    assert sum(encoded) <= (len(PICTURES) if cache_bytes else sum(len(images) for _, images in PROMPTS))


def test_a_step_encodes_no_more_than_it_has_room_for(
    make_engine: MakeEngine, expected: list[list[int]], encoded: list[int]
) -> None:
    assert tokens_of(make_engine(max_num_image_tokens=64)) == expected
    assert encoded == [3, 1]  # the largest has 64 tokens, the first three 57


def test_preempted_requests_see_again(make_engine: MakeEngine, expected: list[list[int]]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    engine = make_engine(num_kv_blocks=16, max_model_len=200, max_num_batched_tokens=64)
    long = tokens_of(engine, GIVEN, params)
    assert engine.stats.num_preemptions > 0
    assert [tokens[:8] for tokens in long] == expected


def test_drafts_change_no_token(make_engine: MakeEngine, expected: list[list[int]]) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    engine, plain = make_engine(speculative_config=config), make_engine()
    assert tokens_of(engine, GIVEN, params) == tokens_of(plain, GIVEN, params)
    assert engine.stats.num_accepted_tokens > 0


async def test_other_processes_see_the_same(seeing: Path, expected: list[list[int]]) -> None:
    async with running(seeing, skip_tokenizer_init=True) as engine:
        prompts, images = [tokens for tokens, _ in PROMPTS], [images for _, images in PROMPTS]
        stream = engine.submit(await engine.check_prompts(prompts, images=images), GREEDY)
        found: dict[str, list[int]] = {request_id: [] for request_id in stream.request_ids}
        async for news in stream:
            found[news.request_id] += news.output_tokens
        assert list(found.values()) == expected
        # Who goes in the middle of a prompt leaves nothing behind.
        ending = engine.submit(await engine.check_prompts(prompts, images=images), GREEDY)
        await asyncio.sleep(0.01)
        await engine.abort(ending)
        async for _ in ending:
            pass
        again = engine.submit(await engine.check_prompts(prompts[:1], images=images[:1]), GREEDY)
        assert [token async for news in again for token in news.output_tokens] == expected[0]


CUT: dict[str, Any] = {"max_num_batched_tokens": 7, "max_num_seqs": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, **CUT},
        {"pipeline_parallel_size": 2, **CUT},
        {"data_parallel_size": 2},
        {"level": 1},
    ],
    ids=str,
)
def test_ranks_stages_engines_and_compiled_models_see_the_same(
    make_engine: MakeEngine, expected: list[list[int]], settings: dict[str, Any]
) -> None:
    engine = make_engine(**settings)
    for _ in range(2):
        assert tokens_of(engine) == expected


def prompts_of(spec: VisionSpec) -> list[dict[str, Any]]:
    """As `GIVEN`, in the tokens and sizes of another model, which may have no marks around a picture."""
    marks = {START: spec.start_token_id, IMAGE: spec.image_token_id, END: spec.end_token_id}
    if spec.start_token_id is None:
        marks |= {START: None, END: 40}
    found = ([marks.get(token, token) for token in tokens] for tokens, _ in PROMPTS)
    prompts = [[token for token in tokens if token is not None] for tokens in found]
    shown = [[in_one_size(image, spec) for image in images] for _, images in PROMPTS]
    return [{"prompt_token_ids": tokens, "images": images} for tokens, images in zip(prompts, shown, strict=True)]


def in_one_size(image: Image, spec: VisionSpec) -> Image:
    """The picture, resized where a model takes one size alone."""
    if spec.resizing != "fixed":
        return image
    pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)
    return as_image(pixels, spec)


OTHERS = ["qwen2_5_vl", "qwen3_5", "mistral3", "kimi_k25", "gemma3-seeing"]
# A step has room for a picture of 16 tokens that see each other, and for little more.
CUT_BESIDE_PICTURES: dict[str, Any] = {"max_num_batched_tokens": 19, "max_num_seqs": 2}
TINY = {"dtype": "float32", "num_kv_blocks": 64, "num_threads": 1, "skip_tokenizer_init": True, "seed": 0}


def seen_by(folder: Path, params: SamplingParams = GREEDY, **settings: Any) -> list[list[int]]:
    """The tokens of a model behind all prompts, which a warm cache does not change."""
    with LLMEngine(str(folder), **TINY | settings) as engine:
        assert engine.info.images is not None
        prompts = prompts_of(engine.info.images)
        found = tokens_of(engine, prompts, params)
        assert tokens_of(engine, prompts, params) == found
        return found


@pytest.mark.parametrize("family", OTHERS)
def test_other_towers_and_layers_that_keep_states_go_with_it(family: str, tiny_family: Callable[[str], Path]) -> None:
    """Towers with windows, rows that tokens end, sides that are filled up; layers of latents and of states."""
    folder = tiny_family(family)
    with LLMEngine(str(folder), enable_prefix_caching=False, **TINY) as engine:
        assert engine.info.images is not None
        prompts = prompts_of(engine.info.images)
        expected = [tokens_of(engine, [prompt])[0] for prompt in prompts]
        three = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, n=3)
        assert [output["token_ids"] for output in engine.generate(prompts[:1], three)] == expected[:1] * 3
    assert len(set(map(tuple, expected))) > 2
    with LLMEngine(str(folder), language_model_only=True, **TINY) as engine:
        assert engine.info.images is None
        assert tokens_of(engine, [prompts[3]]) == [expected[3]]
    cut = CUT_BESIDE_PICTURES if family == "gemma3-seeing" else CUT
    for settings in ({}, {"max_num_batched_tokens": 80, "max_num_image_tokens": 72}, cut):
        assert seen_by(folder, **settings) == expected


@pytest.mark.parametrize("family", OTHERS)
def test_other_models_that_are_preempted_see_again(family: str, tiny_family: Callable[[str], Path]) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    few = {"num_kv_blocks": 17, "max_model_len": 200, "max_num_batched_tokens": 72}
    folder = tiny_family(family)
    with LLMEngine(str(folder), **TINY | few) as engine:
        assert engine.info.images is not None
        found = tokens_of(engine, prompts_of(engine.info.images), long)
        assert engine.stats.num_preemptions > 0
    assert found == seen_by(folder, long, num_kv_blocks=128)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral3", "kimi_k25"])
@pytest.mark.parametrize(
    "settings", [{"tensor_parallel_size": 2, **CUT}, {"pipeline_parallel_size": 2, **CUT}], ids=str
)
def test_ranks_and_stages_of_other_models_see_the_same(
    family: str, settings: dict[str, Any], tiny_family: Callable[[str], Path]
) -> None:
    assert seen_by(tiny_family(family), **settings) == seen_by(tiny_family(family))


def test_prediction_layers_change_no_token_behind_pictures(tiny_family: Callable[[str], Path]) -> None:
    given = {"dtype": "float32", "num_kv_blocks": 64, "num_threads": 1, "skip_tokenizer_init": True, "seed": 0}
    found = []
    for config in (None, {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}):
        with LLMEngine(str(tiny_family("qwen3_5")), speculative_config=config, **given) as engine:
            assert engine.info.images is not None
            prompts = prompts_of(engine.info.images)
            found += [tokens_of(engine, prompts) for _ in range(2)]
            assert (engine.stats.num_draft_tokens > 0) == (config is not None)
    assert found == found[:1] * 4


def test_a_model_that_is_to_read_alone_takes_no_pictures(make_engine: MakeEngine, expected: list[list[int]]) -> None:
    engine = make_engine(language_model_only=True)
    assert engine.info.images is None
    assert tokens_of(engine, [GIVEN[3]]) == [expected[3]]
    with pytest.raises(InvalidRequestError, match="reads text alone"):
        engine.generate(GIVEN[:1])


def test_arrays_and_pictures_of_pillow_are_fitted(make_engine: MakeEngine) -> None:
    pillow = pytest.importorskip("PIL.Image")
    engine, spec = make_engine(), None
    array = np.random.default_rng(0).integers(0, 256, (50, 30, 3), dtype=np.uint8)
    prompt, _ = around([5, 6])
    asked = {"prompt_token_ids": [*prompt, IMAGE, 7]}
    outputs = engine.generate(
        [asked | {"images": [array]}, asked | {"images": [pillow.fromarray(array)]}], GREEDY, use_tqdm=False
    )
    spec = engine.info.images
    assert outputs[0]["num_tokens_input"] == 3 + spec.num_tokens(*spec.fitted(50, 30))
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"]
