"""Embeddings, through the official client; that they equal `transformers` is tested with the engine."""

from __future__ import annotations

import base64
import json
import math
import shutil
import struct

import pytest
from openai import BadRequestError


def embed(client, prompts, **fields):
    return client.embeddings.create(model="tiny", input=prompts, **fields)


def vectors(answer):
    return [entry.embedding for entry in answer.data]


def test_an_embedding_has_the_shape_that_clients_expect(client):
    answer = embed(client, "Hello world", encoding_format="float")
    assert (answer.object, answer.model) == ("list", "tiny")
    assert [(entry.object, entry.index) for entry in answer.data] == [("embedding", 0)]
    assert math.isclose(sum(x * x for x in answer.data[0].embedding), 1.0, rel_tol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_text_and_token_ids_alone_or_in_lists_are_the_same(server, client):
    tokens = server.post("/tokenize", prompt="Hello world").json()["tokens"]
    [alone] = vectors(embed(client, "Hello world", encoding_format="float"))
    for prompts in (["Hello world", "other"], tokens, [tokens, [5, 6]]):
        found = vectors(embed(client, prompts, encoding_format="float"))
        assert found[0] == pytest.approx(alone, abs=1e-5)


def test_base64_carries_the_same_numbers(server, client):
    [numbers] = vectors(embed(client, "Hello world", encoding_format="float"))
    answer = server.post("/v1/embeddings", input="Hello world", encoding_format="base64").json()
    data = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack(f"<{len(numbers)}f", data) == pytest.approx(numbers, abs=1e-6)
    assert vectors(embed(client, "Hello world"))[0] == pytest.approx(numbers, abs=1e-6)


def test_the_pooling_can_be_chosen(client):
    mean, last = (vectors(embed(client, "Hello world", extra_body={"pooling": kind})) for kind in ("mean", "last"))
    assert mean[0] != pytest.approx(last[0], abs=1e-3)
    assert vectors(embed(client, "Hello world"))[0] == pytest.approx(mean[0], abs=1e-5)


def test_the_models_own_pooling_and_lengths_are_used(make_server, tiny_llama, tmp_path):
    folder = tmp_path / "matryoshka"
    shutil.copytree(tiny_llama, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    kinds = {"1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [4]}))
    with make_server(model=folder) as server:
        client = server.client()
        plain, last, short = (
            vectors(embed(client, "Hello world", encoding_format="float", **fields))[0]
            for fields in ({}, {"extra_body": {"pooling": "last"}}, {"dimensions": 4})
        )
    assert plain == pytest.approx(last, abs=1e-6)
    length = math.sqrt(sum(x * x for x in plain[:4]))
    assert short == pytest.approx([x / length for x in plain[:4]], abs=1e-5)


def test_long_prompts_are_cut_where_that_is_asked_for(server, client):
    ids = list(range(5, 50))
    [cut] = vectors(embed(client, [ids], encoding_format="float", extra_body={"truncate_prompt_tokens": 9}))
    [end] = vectors(embed(client, [ids[-9:]], encoding_format="float"))
    assert cut == pytest.approx(end, abs=1e-5)


def test_nothing_is_left_running(server, client):
    embed(client, [[5] * 300] * 8)
    server.wait_until_idle()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "empty_prompt"),
        ({"input": [5] * 600}, "input", "context_length_exceeded"),
        ({"input": [[5], [99999]]}, "input", "invalid_token_id"),
        ({"input": "a" * 400_000}, "input", "context_length_exceeded"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 4}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_value"),
    ],
)
def test_errors_name_the_field(server, fields, param, code):
    answer = server.post("/v1/embeddings", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_the_client_raises_its_own_error(client):
    with pytest.raises(BadRequestError, match="empty"):
        embed(client, [[]])
