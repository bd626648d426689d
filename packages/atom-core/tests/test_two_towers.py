"""Engines of CLIP and SigLIP: vectors of texts and pictures equal those of transformers, however they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from atom_core import InvalidRequestError, LLMEngine, SamplingParams
from atom_core.config import ConfigError, EngineArgs, resolve_config
from atom_kernels.platform import detect_platform
from atom_models import open_checkpoint
from shared_ranks import SharedRanks
from shared_ranks import make_engine as over_ranks
from tiny_dual import FAMILIES, make_dual, noise, their_pictures, their_texts
from tiny_encoders import CLS, SEP

# Ragged, short, and as long as SigLIP's positions go.
TEXTS = [[CLS, 9, SEP], [CLS, SEP], [CLS, *range(7, 17), SEP], [CLS, 40, 41, 42, SEP]]
# One has the size itself; others are wide, high, smaller, and of one row.
PICTURES = [noise(32, 32), noise(50, 120, 1), noise(171, 64, 2), noise(9, 14, 3), noise(1, 3, 4)]


def make_engine(folder: Path, **settings: Any) -> LLMEngine:
    return LLMEngine(str(folder), **{"dtype": "float32", "num_threads": 1} | settings)


@pytest.fixture(scope="module", params=FAMILIES)
def dual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, make_dual(request.param, folder)


@pytest.fixture(scope="module")
def engine(dual):
    with make_engine(dual[0]) as engine:
        yield engine


def shown(picture: Any) -> dict[str, Any]:
    return {"images": [picture]}


def assert_same(found: list[list[float]], expected: torch.Tensor) -> None:
    """Vectors of an engine have length 1, as those that are compared by their cosines."""
    normed = torch.nn.functional.normalize(expected, dim=1)
    torch.testing.assert_close(torch.tensor(found), normed, atol=1e-5, rtol=0)


def test_texts_have_the_vectors_of_transformers_alone_and_together(dual, engine: LLMEngine):
    expected = their_texts(dual[1], TEXTS)
    assert_same(engine.embed(TEXTS), expected)
    assert_same([engine.embed([text])[0] for text in TEXTS], expected)


def test_pictures_of_any_size_have_the_vectors_of_transformers(dual, engine: LLMEngine):
    expected = their_pictures(dual[1], PICTURES)
    assert_same(engine.embed([shown(picture) for picture in PICTURES]), expected)
    assert_same([engine.embed(shown(picture))[0] for picture in PICTURES], expected)


def test_texts_and_pictures_share_steps(dual):
    """Each step has room for the patches of two pictures."""
    prompts, expected = [], []
    texts, pictures = their_texts(dual[1], TEXTS), their_pictures(dual[1], PICTURES)
    for index, picture in enumerate(PICTURES):
        prompts += [shown(picture), TEXTS[index % 4]]
        expected += [pictures[index], texts[index % 4]]
    with make_engine(dual[0], max_num_batched_tokens=40, image_cache_memory=0) as engine:
        for _ in range(2):
            assert_same(engine.embed(prompts), torch.stack(expected))


def test_a_text_of_words_is_ended_by_the_tokenizer(dual, engine: LLMEngine):
    assert engine.tokenizer is not None
    tokens = engine.tokenizer.encode("where is the sea")
    assert tokens[-1] == SEP
    assert_same(engine.embed("where is the sea"), their_texts(dual[1], [tokens]))


def test_the_first_token_of_the_vocabulary_is_no_picture(dual, engine: LLMEngine):
    assert_same(engine.embed([[CLS, 0, SEP]]), their_texts(dual[1], [[CLS, 0, SEP]]))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ({"prompt": "sea", "images": [PICTURES[0]]}, "has 1 pictures and 3 tokens; this model makes a vector of a"),
        ({"images": PICTURES[:2]}, "has 2 pictures and 1 tokens"),
    ],
)
def test_a_prompt_is_one_text_or_one_picture(engine: LLMEngine, prompt: dict[str, Any], says: str):
    with pytest.raises(InvalidRequestError, match=says):
        engine.embed(prompt)


def test_a_picture_that_would_be_cropped_to_nothing_is_refused_and_stretched_where_all_are(dual, engine: LLMEngine):
    strip = noise(2, 500)
    if dual[1].config.model_type == "siglip":
        assert_same(engine.embed(shown(strip)), their_pictures(dual[1], [strip]))
        return
    with pytest.raises(InvalidRequestError, match="one side is more than 200 times the other"):
        engine.embed(shown(strip))


def test_what_two_towers_cannot_do_is_refused(engine: LLMEngine):
    with pytest.raises(InvalidRequestError, match="pooling is 'mean'; this model makes its vectors itself"):
        engine.embed(TEXTS, "mean")
    with pytest.raises(InvalidRequestError, match="cannot generate: .*Model is an encoder"):
        engine.generate(TEXTS[:1], SamplingParams(max_tokens=1), use_tqdm=False)
    too_long = [CLS] * (engine.info.max_model_len + 1)
    with pytest.raises(InvalidRequestError, match="send at most"):
        engine.embed([too_long])


def test_without_the_tower_of_pictures_texts_have_the_same_vectors(dual):
    with make_engine(dual[0], language_model_only=True) as engine:
        assert engine.info.images is None
        assert_same(engine.embed(TEXTS), their_texts(dual[1], TEXTS))
        with pytest.raises(InvalidRequestError, match="reads text alone"):
            engine.embed({"prompt": "sea", "images": [PICTURES[0]]})


def test_a_picture_is_encoded_once(dual):
    with make_engine(dual[0]) as engine:
        first = engine.embed(shown(PICTURES[1]))
        pixels = np.array(PICTURES[1])
        assert engine.embed([shown(pixels), shown(pixels)]) == [*first, *first]


@pytest.mark.parametrize(("budget", "pictures"), [(1000, 62), (20, 1)])
def test_a_step_encodes_as_many_pictures_as_have_patches_for_it(dual, budget: int, pictures: int):
    """16 patches each; a token of a picture is no measure of what its tower computes."""
    args = EngineArgs(model=str(dual[0]), max_num_batched_tokens=budget)
    config = resolve_config(args, open_checkpoint(dual[0]), detect_platform())
    assert config.scheduler.max_num_image_tokens == pictures


def test_two_ranks_share_the_tower_of_texts_and_have_that_of_pictures_each(dual, ranks: SharedRanks):
    with over_ranks(dual[0], ranks, num_kv_blocks=None) as engine:
        assert_same(engine.embed(TEXTS), their_texts(dual[1], TEXTS))
        assert_same(engine.embed([shown(PICTURES[1])]), their_pictures(dual[1], PICTURES[1:2]))


def test_settings_of_decoders_are_refused(dual):
    with pytest.raises(ConfigError, match="which keeps no cache"):
        make_engine(dual[0], kv_offload_memory=1 << 20)
