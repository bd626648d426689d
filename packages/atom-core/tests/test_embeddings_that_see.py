"""Vectors of prompts with pictures, as of Qwen3-VL-Embedding: equal to those of transformers, however they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from atom_core import LLMEngine
from atom_core.errors import InvalidRequestError
from embedding_folder import write_modules
from seeing_models import around, make_seeing, picture, states_of_transformers

FIRST, SECOND, LONG = picture(1), picture(2, 3, 3), picture(3, 8, 8)
PROMPTS = [
    around([5, 6, 7], FIRST, [8, 9]),
    around([5, 6, 7], picture(4), [8, 9]),
    around(LONG, [21, 22]),
    around([30] * 20),
    around([5, 6], FIRST, [8], SECOND, [12, 13]),
    around([33, 34, 35]),
]
GIVEN = [{"prompt_token_ids": tokens, "images": images} for tokens, images in PROMPTS]

MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_seeing(tmp_path_factory.mktemp("seeing"))
    write_modules(folder)
    return folder


@pytest.fixture(scope="module")
def states(folder: Path) -> list[torch.Tensor]:
    return states_of_transformers(folder, PROMPTS)


@pytest.fixture
def make_engine(folder: Path) -> Iterator[MakeEngine]:
    made: list[LLMEngine] = []

    def make(**settings: Any) -> LLMEngine:
        given = {"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "seed": 0}
        made.append(LLMEngine(str(folder), **given | settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def assert_same(found: list[list[float]], pooled: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, pooled, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.nn.functional.normalize(theirs, dim=0), atol=1e-5, rtol=0)


def test_vectors_are_the_last_states_of_transformers_alone_together_and_in_pieces(make_engine: MakeEngine, states):
    last = [state[-1] for state in states]
    engine = make_engine()
    assert_same([engine.embed(prompt)[0] for prompt in GIVEN], last)
    assert_same(engine.embed(GIVEN), last)  # from cached prefixes, some of them
    pieces = make_engine(max_num_batched_tokens=16, enable_prefix_caching=False, image_cache_memory=0)
    assert_same(pieces.embed(GIVEN), last)
    assert abs(torch.tensor(engine.embed(GIVEN[:2])).diff(dim=0)).max() > 1e-3, "what the pictures show"


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_poolings_see_the_rows_of_pictures(make_engine: MakeEngine, states, pooling: str):
    pooled = [state.mean(dim=0) if pooling == "mean" else state[0] for state in states]
    engine = make_engine(max_num_batched_tokens=16)
    for _ in range(2):
        assert_same(engine.embed(GIVEN, pooling), pooled)


def test_texts_with_arrays_give_the_vectors_of_their_tokens(make_engine: MakeEngine):
    engine = make_engine()
    pixels = np.frombuffer(FIRST.pixels, np.uint8).reshape(FIRST.height, FIRST.width, 3)
    text = "<|vision_start|><|image_pad|><|vision_end|>what?"
    assert engine.tokenizer is not None
    tokens = engine.tokenizer.encode(text)
    [shown] = engine.embed({"prompt": text, "images": [pixels]})
    assert shown == engine.embed({"prompt_token_ids": tokens, "images": [FIRST]})[0]


def test_the_models_prompt_is_put_before_texts_alone(folder: Path, make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    engine.embedding_model = type(engine.embedding_model)("last", prompts={"q": "hours"}, default_prompt="q")
    assert engine.embed("a") == engine.embed({"prompt": "hoursa"}) != engine.embed({"prompt": "a"})


def test_pictures_without_places_are_refused(make_engine: MakeEngine):
    with pytest.raises(InvalidRequestError, match="has 0 image tokens"):
        make_engine().embed({"prompt_token_ids": [5, 6], "images": [FIRST]})
