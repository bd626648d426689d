"""Grammars and log-probabilities behind pictures: those of transformers, however a prompt is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("transformers")

import torch

from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from grammars import PERSON, make_matcher, make_params, unpacked
from seeing_models import IMAGE, around, logprobs_of_transformers, make_seeing, picture

pytestmark = pytest.mark.usefixtures("quiet_transformers")

FIRST, SECOND = picture(1), picture(2, 3, 3)
# The first two differ in a picture alone; blocks end inside of them.
PROMPTS = [
    around([5, 6, 7], FIRST, [8, 9, 10, 11], SECOND, [12]),
    around([5, 6, 7], picture(4), [8, 9, 10, 11], SECOND, [12]),
    around(picture(3, 8, 8), [21, 22]),
    around([33, 34, 35]),
]
GIVEN = [{"prompt_token_ids": tokens, "images": images} for tokens, images in PROMPTS]
# A step ends inside of each picture.
CUT = {"max_num_batched_tokens": 7, "max_num_seqs": 2}
REPORTED = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)
OF_PROMPTS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=2)
CONSTRAINED = make_params(0.0, max_tokens=200, json=PERSON)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing(tmp_path_factory.mktemp("seeing"))


def open_engine(folder: Path, **settings: Any) -> LLMEngine:
    return LLMEngine(str(folder), **{"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "seed": 0} | settings)


@pytest.fixture(scope="module")
def engine(seeing: Path) -> Iterator[LLMEngine]:
    with open_engine(seeing) as engine:
        yield engine


def answers(engine: LLMEngine, params: SamplingParams, prompts: Sequence[Any] = GIVEN) -> list[dict[str, Any]]:
    return engine.generate(list(prompts), params, use_tqdm=False)


@pytest.fixture(scope="module")
def alone(seeing: Path) -> Iterator[LLMEngine]:
    """An engine that takes nothing out of a cache."""
    with open_engine(seeing, enable_prefix_caching=False, image_cache_memory=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def judged(alone: LLMEngine) -> list[dict[str, Any]]:
    """What each prompt gives alone, with what the model thinks of it: held against transformers."""
    return [answers(alone, OF_PROMPTS, [prompt])[0] for prompt in GIVEN]


def thoughts(seeing: Path, found: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """Those of transformers of all tokens behind each token of prompts and of their answers."""
    said = [answer["token_ids"] for answer in found]
    return logprobs_of_transformers(
        seeing, [([*tokens, *answer], images) for (tokens, images), answer in zip(PROMPTS, said, strict=True)]
    )


def assert_close(entries: Sequence[Any], others: Sequence[Any]) -> None:
    assert [entry.token_id for entry in entries] == [other.token_id for other in others]
    for entry, other in zip(entries, others, strict=True):
        assert entry.rank == other.rank
        assert [one[0] for one in entry.top] == [one[0] for one in other.top]
        numbers, expected = ([one.logprob, *(each[-1] for each in one.top)] for one in (entry, other))
        assert numbers == pytest.approx(expected, abs=1e-4)


def test_log_probabilities_of_prompts_and_answers_are_those_of_transformers(seeing: Path, judged: list[dict[str, Any]]):
    for answer, thought in zip(judged, thoughts(seeing, judged), strict=True):
        entries = [*answer["prompt_logprobs"], *answer["logprobs"]]
        assert len(entries) == len(thought) - 1
        for entry, row in zip(entries, thought, strict=False):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
            likeliest = row.topk(len(entry.top))
            assert [one[0] for one in entry.top] == likeliest.indices.tolist()
            assert [one[-1] for one in entry.top] == pytest.approx(likeliest.values.tolist(), abs=1e-4)


def test_each_token_of_a_picture_has_an_entry_of_the_image_token(judged: list[dict[str, Any]]):
    for (tokens, images), answer in zip(PROMPTS, judged, strict=True):
        told = [entry.token_id for entry in answer["prompt_logprobs"]]
        assert len(told) == answer["num_tokens_input"] - 1
        assert told.count(IMAGE) == sum(image.height * image.width // 64 for image in images)
        assert [token for token in told if token != IMAGE] == [token for token in tokens if token != IMAGE][1:]


@pytest.mark.parametrize("settings", [{}, CUT], ids=["in a batch", "in parts of pictures"])
def test_log_probabilities_do_not_change_with_steps(seeing: Path, judged: list[dict[str, Any]], settings: Any):
    with open_engine(seeing, **settings) as engine:
        for answer, expected in zip(answers(engine, OF_PROMPTS), judged, strict=True):
            for kind in ("prompt_logprobs", "logprobs"):
                assert_close(answer[kind], expected[kind])


def test_log_probabilities_behind_cached_pictures_are_those_of_computed_ones(
    engine: LLMEngine, judged: list[dict[str, Any]]
):
    for num_cached in (0, 32):
        found = answers(engine, REPORTED)
        assert found[0]["num_cached_tokens"] == num_cached
        for answer, expected in zip(found, judged, strict=True):
            assert_close(answer["logprobs"], expected["logprobs"])
    # Who asks for those of the prompt has it computed, whatever is cached.
    again = answers(engine, OF_PROMPTS)
    assert again[0]["num_cached_tokens"] == 0
    assert_close(again[0]["prompt_logprobs"], judged[0]["prompt_logprobs"])


@pytest.fixture(scope="module")
def filled_in(alone: LLMEngine) -> list[dict[str, Any]]:
    """What each prompt gives alone under a grammar: held against transformers."""
    return [answers(alone, CONSTRAINED, [prompt])[0] for prompt in GIVEN]


def test_a_grammar_leaves_the_likeliest_tokens_of_transformers_that_it_allows(
    seeing: Path, engine: LLMEngine, filled_in: list[dict[str, Any]]
):
    for answer, thought in zip(filled_in, thoughts(seeing, filled_in), strict=True):
        assert answer["finish_reason"] == "stop"
        jsonschema.validate(json.loads(answer["text"]), PERSON)
        matcher = make_matcher(engine, StructuredOutputParams(json=PERSON))
        first = answer["num_tokens_input"] - 1
        for token, row in zip(answer["token_ids"], thought[first:], strict=False):
            forbidden = ~torch.from_numpy(unpacked(matcher.mask(), len(row)))
            assert token == int(row.masked_fill(forbidden, -torch.inf).argmax())
            matcher.accept([token])
    assert filled_in[0]["text"] != filled_in[1]["text"]


@pytest.mark.parametrize("settings", [{}, CUT], ids=["in a batch", "in parts of pictures"])
def test_a_grammar_behind_pictures_gives_the_same_in_any_steps_and_out_of_a_warm_cache(
    seeing: Path, filled_in: list[dict[str, Any]], settings: Any
):
    with open_engine(seeing, **settings) as engine:
        for _ in range(2):
            found = answers(engine, CONSTRAINED)
            assert [answer["token_ids"] for answer in found] == [answer["token_ids"] for answer in filled_in]
    assert found[0]["num_cached_tokens"] == 32
