"""Scores and reranking: the likelihood of one text after another."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

DOCUMENTS = ["cats sleep", "The sun is a star.", "x y z"]


def tokens_of(server, text, **fields):
    return server.post("/tokenize", prompt=text, **fields).json()["tokens"]


@pytest.fixture(scope="module")
def likelihood(server, tiny_llama):
    """The score of the second text after the first, by `transformers`."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)

    def compute(first, second):
        context, following = tokens_of(server, first), tokens_of(server, second, add_special_tokens=False)
        with torch.inference_mode():
            logits = model(torch.tensor([context + following])).logits[0].log_softmax(dim=-1)
        places = range(len(context) - 1, len(context) + len(following) - 1)
        values = [float(logits[place, token]) for place, token in zip(places, following, strict=True)]
        return math.exp(sum(values) / len(values))

    return compute


def test_scores_are_likelihoods(server, likelihood):
    answer = server.post("/v1/score", text_1="What is the sun?", text_2=DOCUMENTS).json()
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    for entry, document in zip(answer["data"], DOCUMENTS, strict=True):
        assert entry["score"] == pytest.approx(likelihood("What is the sun?", document), rel=1e-3)
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


def test_two_lists_are_scored_pair_by_pair(server):
    both = server.post("/v1/score", text_1=["a b", "c d"], text_2=["e", "f"]).json()["data"]
    one = server.post("/v1/score", text_1="c d", text_2="f").json()["data"]
    assert both[1]["score"] == pytest.approx(one[0]["score"], rel=1e-4)


def test_documents_are_put_in_order(server, likelihood):
    answer = server.post("/v1/rerank", query="What is the sun?", documents=DOCUMENTS).json()
    expected = [likelihood(f"{document}\n", "What is the sun?") for document in DOCUMENTS]
    assert [result["index"] for result in answer["results"]] == sorted(range(3), key=lambda index: -expected[index])
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], rel=1e-3)
        assert result["document"]["text"] == DOCUMENTS[result["index"]]


def test_the_best_documents_can_be_asked_for_without_their_texts(server):
    documents = [{"text": text} for text in DOCUMENTS]
    everything = server.post("/v1/rerank", query="sun", documents=documents).json()["results"]
    fields = {"query": "sun", "documents": documents, "top_n": 2, "return_documents": False}
    best = server.post("/v1/rerank", **fields).json()["results"]
    assert [result["index"] for result in best] == [result["index"] for result in everything[:2]]
    assert not any("document" in result for result in best)


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        ("/v1/score", {"text_1": "a"}, "text_2", "missing_required_parameter"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2", "invalid_value"),
        ("/v1/score", {"text_1": "a", "text_2": ""}, "text_2", "invalid_value"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "invalid_value"),
        ("/v1/score", {"text_1": "a " * 800, "text_2": "b"}, "text_2", "context_length_exceeded"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "invalid_value"),
        ("/v1/rerank", {"query": "a", "documents": [5]}, "documents[0]", "invalid_type"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "invalid_value"),
    ],
)
def test_errors_name_the_field(server, path, fields, param, code):
    answer = server.post(path, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
