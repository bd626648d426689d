"""Rerankers, classifiers and encoders over HTTP: what transformers gives for the pairs that its tokenizer lays out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from running_server import RunningServer
from tiny_encoders import make_encoder, write_modules

QUERY = "where is the sea"
DOCUMENTS = ["the river is of stone", "a b c", "the sea is the sea of hours where the stone is"]


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")


def scores_of(reference: Any, folder: Path, query: str, documents: list[str], *, has_types: bool) -> list[float]:
    """As a cross-encoder of sentence-transformers computes them."""
    tokenizer, scores = tokenizer_of(folder), []
    for document in documents:
        encoded = tokenizer(query, document, return_tensors="pt", return_token_type_ids=has_types)
        with torch.inference_mode():
            scores.append(float(torch.sigmoid(reference(**encoded).logits[0, 0])))
    return scores


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[float]]]:
    """A server of a BERT with one label, and the scores of `DOCUMENTS`."""
    folder = tmp_path_factory.mktemp("reranker")
    reference = make_encoder("bert", folder, labels=1)
    expected = scores_of(reference, folder, QUERY, DOCUMENTS, has_types=True)
    with RunningServer(folder) as running:
        yield running, expected


def test_documents_are_in_the_order_of_their_scores(reranker):
    server, expected = reranker
    results = server.post("/v1/rerank", query=QUERY, documents=DOCUMENTS).json()["results"]
    assert [result["index"] for result in results] == sorted(range(3), key=lambda index: -expected[index])
    for result in results:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], rel=1e-4)


def test_scores_of_pairs_are_those_of_the_head(reranker):
    server, expected = reranker
    answer = server.post("/score", text_1=QUERY, text_2=DOCUMENTS).json()
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected, rel=1e-4)
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        ("/v1/completions", {"prompt": "the sea"}, "model", "BertForSequenceClassification is an encoder"),
        ("/v1/rerank", {"query": "a " * 40, "documents": ["b " * 30]}, "documents", "send at most 64"),
        ("/v1/embeddings", {"input": "a " * 63}, "input", "prompt has 65 tokens"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "instruction": "c"},
            "instruction",
            "is given no instruction",
        ),
    ],
)
def test_what_a_reranker_cannot_do_is_refused(reranker, path, fields, param, says):
    answer = reranker[0].post(path, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]


def test_a_text_as_long_as_the_model_takes_has_a_vector(reranker):
    assert reranker[0].post("/v1/embeddings", input="a " * 62).status_code == 200


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Any, Path]]:
    """A server of a ModernBERT with three labels."""
    folder = tmp_path_factory.mktemp("classifier")
    reference = make_encoder("modernbert", folder, labels=3, classifier_pooling="mean")
    with RunningServer(folder) as running:
        yield running, reference, folder


@pytest.mark.slow
def test_texts_get_the_labels_of_the_config(classifier):
    server, reference, folder = classifier
    data = server.post("/classify", input=DOCUMENTS).json()["data"]
    for entry, document in zip(data, DOCUMENTS, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([tokenizer_of(folder)(document)["input_ids"]])
            expected = torch.softmax(reference(ids).logits[0], dim=0)
        assert entry["probs"] == pytest.approx(expected.tolist(), rel=1e-4)
        assert (entry["label"], entry["num_classes"]) == (f"label-{int(expected.argmax())}", 3)


@pytest.mark.slow
def test_a_classifier_is_no_reranker(classifier):
    error = classifier[0].post("/rerank", query="a", documents=["b"]).json()["error"]
    assert "it tells 3 labels (label-0, label-1, label-2): POST /classify" in error["message"]


def test_a_model_without_labels_tells_none(server):
    error = server.post("/classify", input="a").json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert "LlamaForCausalLM has no head of labels" in error["message"]


TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def template_of(folder: Path, instruction: str, document: str) -> torch.Tensor:
    """The prompt of the published code."""
    tokenizer = tokenizer_of(folder)
    body = f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}"
    parts = (TEMPLATE[0], body, TEMPLATE[1])
    return torch.tensor([[token_id for part in parts for token_id in tokenizer(part)["input_ids"]]])


@pytest.mark.slow
def test_a_qwen3_reranker_says_yes_or_no(tmp_path: Path):
    folder = tmp_path / "Qwen3-Reranker-tiny"
    reference = make_encoder("qwen3", folder)
    no, yes = (tokenizer_of(folder).convert_tokens_to_ids(word) for word in ("no", "yes"))
    usual = "Given a web search query, retrieve relevant passages that answer the query"
    with RunningServer(folder) as running:
        for fields in ({}, {"instruction": "find the stone"}):
            answer = running.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS, **fields).json()
            for entry, document in zip(answer["data"], DOCUMENTS, strict=True):
                with torch.inference_mode():
                    logits = reference(template_of(folder, fields.get("instruction", usual), document)).logits[0, -1]
                expected = float(torch.softmax(logits[[no, yes]], dim=0)[1])
                assert entry["score"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_a_qwen3_reranker_that_was_converted_has_one_label(tmp_path: Path):
    reference = make_encoder("qwen3", tmp_path, labels=1)
    usual = "Given a web search query, retrieve relevant passages that answer the query"
    with RunningServer(tmp_path) as running:
        data = running.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()["data"]
    for entry, document in zip(data, DOCUMENTS, strict=True):
        with torch.inference_mode():
            expected = float(torch.sigmoid(reference(template_of(tmp_path, usual, document)).logits[0, 0]))
        assert entry["score"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_pairs_of_roberta_have_two_marks_between_them(tmp_path: Path):
    reference = make_encoder("xlm-roberta", tmp_path, labels=1)
    expected = scores_of(reference, tmp_path, QUERY, DOCUMENTS, has_types=False)
    with RunningServer(tmp_path) as running:
        data = running.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()["data"]
    assert [entry["score"] for entry in data] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_an_encoder_without_a_head_compares_vectors(tmp_path: Path):
    reference = make_encoder("bert", tmp_path)
    write_modules(tmp_path, "cls_token", normalizes=False)
    tokenizer = tokenizer_of(tmp_path)

    def vector(text: str) -> torch.Tensor:
        with torch.inference_mode():
            return reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0]

    expected = [float(torch.cosine_similarity(vector(QUERY), vector(text), dim=0)) for text in DOCUMENTS]
    with RunningServer(tmp_path) as running:
        data = running.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()["data"]
        [embedding] = running.post("/v1/embeddings", input=QUERY).json()["data"]
    assert [entry["score"] for entry in data] == pytest.approx(expected, abs=1e-5)
    assert embedding["embedding"] == pytest.approx(vector(QUERY).tolist(), abs=1e-4)
