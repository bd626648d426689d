"""Engines of encoders: vectors as sentence-transformers makes them, prompts whole, no cache, and no text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom_core import InvalidRequestError, LLMEngine, SamplingParams
from atom_core.config.options import ConfigError
from tiny_encoders import FAMILIES, make_encoder, write_modules

# Ragged, odd, of one token, and as long as the model takes.
PROMPTS = [[2, 9, 3], [5], [2, *(7 + i % 60 for i in range(40)), 3], [2, *(5 + i * 7 % 90 for i in range(62)), 3]]


def make_engine(folder: Path, **settings) -> LLMEngine:
    return LLMEngine(model=str(folder), dtype="float32", **settings)


def pooled(states_TD: torch.Tensor, mode: str) -> torch.Tensor:
    """The arithmetic of sentence-transformers' Pooling."""
    by_mode = {"cls_token": states_TD[0], "lasttoken": states_TD[-1], "mean_tokens": states_TD.mean(dim=0)}
    return by_mode[mode]


@pytest.mark.parametrize(
    ("family", "mode", "normalizes"),
    [
        ("bert", "cls_token", True),
        ("bert", "mean_tokens", False),
        ("roberta", "mean_tokens", True),
        ("xlm-roberta", "lasttoken", False),
        ("modernbert", "cls_token", True),
    ],
)
def test_vectors_are_those_of_the_modules_in_steps_of_many_prompts(family, mode, normalizes, tmp_path: Path):
    reference = make_encoder(family, tmp_path)
    write_modules(tmp_path, mode, normalizes=normalizes)
    # Room for the longest prompt and a few tokens: prompts that do not fit wait for the next step whole.
    engine = make_engine(tmp_path, max_num_batched_tokens=70)
    vectors = engine.embed(PROMPTS)
    engine.close()
    for vector, prompt in zip(vectors, PROMPTS, strict=True):
        with torch.inference_mode():
            expected = pooled(reference(torch.tensor([prompt])).last_hidden_state[0], mode)
        if normalizes:
            expected = torch.nn.functional.normalize(expected, dim=0)
        torch.testing.assert_close(torch.tensor(vector), expected, atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    make_encoder("bert", folder)
    return folder


@pytest.fixture(scope="module")
def engine(bert: Path):
    engine = make_engine(bert)
    yield engine
    engine.close()


def test_nothing_is_cached_and_every_block_comes_back(engine: LLMEngine):
    engine.embed([PROMPTS[2]], "last")
    engine.embed([PROMPTS[2]], "last")
    assert engine.stats.prefix_cache_queries == 0
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_many_prompts_run_in_one_step(engine: LLMEngine):
    before = sum(engine.stats.num_steps_by_size)
    engine.embed([PROMPTS[2]] * 8)
    assert sum(engine.stats.num_steps_by_size) == before + 1


def test_an_encoder_writes_no_text(engine: LLMEngine):
    with pytest.raises(InvalidRequestError, match="cannot generate: BertModel is an encoder; it makes embeddings"):
        engine.generate([[5]], SamplingParams(max_tokens=1), use_tqdm=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_behind_the_last_position_is_refused(family: str, engine: LLMEngine, tmp_path: Path):
    if family != "bert":
        make_encoder(family, tmp_path)
        engine = make_engine(tmp_path)
    with pytest.raises(InvalidRequestError, match="has 65 tokens; this model's context is 64 tokens: send at most 64"):
        engine.embed([[5] * 65])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_num_batched_tokens": 40}, "max_num_batched_tokens is 40, and BertModel is an encoder, whose texts of"),
        ({"method": "ngram"}, "method is set, and BertModel is an encoder, which writes no text that could be guessed"),
        ({"kv_offload_memory": 1 << 20}, "kv_offload_memory is set, and BertModel is an encoder, which keeps no cache"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2, and BertModel is an encoder, which runs in one"),
    ],
)
def test_settings_for_other_models_are_refused(bert: Path, settings: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        make_engine(bert, **settings)


def test_the_budget_of_a_step_grows_to_the_longest_text(tmp_path: Path):
    make_encoder("modernbert", tmp_path, max_position_embeddings=8192)
    engine = make_engine(tmp_path)
    assert engine.info.max_num_batched_tokens >= 8192
    engine.close()
