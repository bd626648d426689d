"""Embeddings: equal to pooling the hidden states of `transformers`, however the engine cuts the work."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModel

from atom_core import InvalidRequestError, SamplingParams
from atom_core.engine.embedding_model import EmbeddingModel, shortened

PROMPTS = [[5], [7, 8, 9], list(range(20, 90)), list(range(30, 230))]


@pytest.fixture(scope="module")
def expected(tiny_llama):
    model = AutoModel.from_pretrained(tiny_llama, dtype=torch.float32)
    vectors = {}
    with torch.inference_mode():
        for index, prompt in enumerate(PROMPTS):
            hidden_TD = model(torch.tensor([prompt])).last_hidden_state[0]
            for pooling, vector_D in (("mean", hidden_TD.mean(dim=0)), ("last", hidden_TD[-1])):
                vectors[pooling, index] = torch.nn.functional.normalize(vector_D, dim=0)
    return vectors


def assert_all_equal(found, expected, pooling):
    for index, vector in enumerate(found):
        torch.testing.assert_close(torch.tensor(vector), expected[pooling, index], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_equal_those_of_transformers(engine, expected, pooling):
    assert_all_equal(engine.embed(PROMPTS, pooling), expected, pooling)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_prompt_in_chunks_is_embedded_as_a_whole(make_engine, expected, pooling):
    engine = make_engine(max_num_batched_tokens=32)
    assert_all_equal(engine.embed(PROMPTS, pooling), expected, pooling)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_cached_prefixes_change_nothing(make_engine, expected, pooling):
    engine = make_engine()
    engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    for _ in range(2):
        assert_all_equal(engine.embed(PROMPTS, pooling), expected, pooling)


def test_embeddings_run_beside_generation(engine, expected):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    [alone] = engine.generate([PROMPTS[1]], params, use_tqdm=False)
    engine.add_request([PROMPTS[1]], params)
    assert_all_equal(engine.embed(PROMPTS), expected, "mean")
    finished = []
    while not engine.is_finished():
        finished += engine.step()
    assert [output["token_ids"] for output in finished] == [alone["token_ids"]]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_preempted_prompt_is_embedded_as_if_it_had_not_been(make_engine, expected, pooling):
    # The long prompt needs 13 of 20 blocks, and the tokens that are generated before it grow into them.
    engine = make_engine(num_kv_blocks=20, max_num_batched_tokens=9)
    engine.add_request([list(range(100))], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    for _ in range(16):
        engine.step()
    [vector] = engine.embed([PROMPTS[3]], pooling)
    torch.testing.assert_close(torch.tensor(vector), expected[pooling, 3], atol=1e-5, rtol=1e-4)
    assert engine.stats.num_preemptions > 0


def test_the_folder_of_a_model_says_how_its_prompts_become_vectors(tmp_path):
    assert EmbeddingModel.read(tmp_path) == EmbeddingModel("mean")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    (tmp_path / "modules.json").write_text('[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]')
    (tmp_path / "config.json").write_text('{"matryoshka_dimensions": [4, 8]}')
    model = EmbeddingModel.read(tmp_path)
    assert (model.pooling, model.shorter) == ("last", (4, 8))
    model.check_dimensions(8)
    with pytest.raises(InvalidRequestError, match="can be cut to 4, 8"):
        model.check_dimensions(5)
    (tmp_path / "config.json").write_text('{"is_matryoshka": true}')
    EmbeddingModel.read(tmp_path).check_dimensions(5)


def test_a_shortened_vector_points_where_its_first_numbers_do():
    assert shortened([0.6, 0.0, 0.8], 2) == [1.0, 0.0]
    assert shortened([0.6, 0.8], None) == [0.6, 0.8]


def test_embeddings_have_length_one_and_leave_nothing_behind(engine):
    [vector] = engine.embed("Hello world")
    assert math.isclose(sum(x * x for x in vector), 1.0, rel_tol=1e-5)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    assert engine.is_finished()


@pytest.mark.parametrize(
    ("prompt", "pooling", "param"),
    [([], "mean", "prompt"), ([10**6], "mean", "prompt"), ([5] * 600, "mean", "prompt"), ([5], "max", "pooling")],
)
def test_what_cannot_be_embedded_is_refused(engine, prompt, pooling, param):
    with pytest.raises(InvalidRequestError) as caught:
        engine.embed([prompt], pooling)
    assert caught.value.param == param
