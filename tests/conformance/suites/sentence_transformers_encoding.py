# /// script
# requires-python = ">=3.11"
# dependencies = ["sentence-transformers==6.2.0", "httpx==0.28.1", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""sentence-transformers: vectors equal to `encode` to 1e-5, by mean and first token; scores of its CrossEncoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertForSequenceClassification, BertModel, BertTokenizer, JinaEmbeddingsV3Model

TEXTS = [
    "The sea is in the west.",
    "a",
    "Where is the stone of the river?  It was there, 30 hours ago!",
    "naïve œuvre 東京 " + "the river of stone " * 12,
]
QUERY, DOCUMENTS = "where is the sea", ["The sea is in the west.", "a stone", "the river is of stone " * 9, "sea"]
WORDS = ["the", "sea", "is", "in", "west", "stone", "river", "of", "where", "hours", "query", "passage", "##s", "##re"]
PROMPTS = {"query": "query: ", "document": "passage: in the west "}
# The model, how vectors are made, whether they have length 1, and which prompt is put before texts that name none.
FOLDERS: dict[str, tuple[type[Any], str, bool, str | None]] = {
    "mean": (BertModel, "mean", True, None),
    "first": (BertModel, "cls", True, "query"),
    "mean_of_any_length": (BertModel, "mean", False, None),
    "jina_embeddings_v3": (JinaEmbeddingsV3Model, "mean", True, None),
}
# What becomes of the number that the head gives; a sigmoid unless the folder names something else.
ACTIVATIONS = {"sigmoid": None, "identity": torch.nn.Identity()}


def save_encoder(folder: Path, kind: type[Any], **fields: Any) -> Path:
    """A tiny random encoder whose tokenizer knows letters, digits and `WORDS`."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *WORDS]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    BertTokenizer(vocab=vocab, model_max_length=128).save_pretrained(folder)
    torch.manual_seed(0)
    config = kind.config_class(
        vocab_size=len(vocab), hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
        max_position_embeddings=128, initializer_range=0.3, pad_token_id=0, **fields,
    )  # fmt: skip
    kind(config).save_pretrained(folder)
    return folder


def post(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(url, json=fields, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors_of(url: str, **fields: Any) -> torch.Tensor:
    return torch.tensor([row["embedding"] for row in post(f"{url}/v1/embeddings", **fields)["data"]])


@pytest.fixture(scope="module", params=FOLDERS)
def encoder(request, tmp_path_factory, serve: Callable[..., str]) -> tuple[str, SentenceTransformer]:
    """A server of a folder that sentence-transformers saved, and what sentence-transformers makes of the folder."""
    kind, pooling, normalizes, default = FOLDERS[request.param]
    model = Transformer(str(save_encoder(tmp_path_factory.mktemp("encoder"), kind)))
    modules = [model, Pooling(model.get_embedding_dimension(), pooling), *([Normalize()] if normalizes else [])]
    folder = tmp_path_factory.mktemp(request.param)
    SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=default).save(str(folder))
    return serve("--model", folder), SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("prompt", [None, *PROMPTS])
def test_vectors_are_those_of_encode(encoder, prompt: str | None):
    url, reference = encoder
    expected = torch.from_numpy(reference.encode(TEXTS, prompt_name=prompt))
    named = {} if prompt is None else {"prompt_name": prompt}
    torch.testing.assert_close(vectors_of(url, input=TEXTS, **named), expected, atol=1e-5, rtol=0)


def test_prompts_and_texts_change_vectors(encoder):
    """Otherwise vectors that know nothing of them would pass."""
    url, _ = encoder
    rows = torch.cat([vectors_of(url, input=TEXTS, prompt_name=prompt) for prompt in PROMPTS])
    assert float(torch.cdist(rows, rows).fill_diagonal_(torch.inf).min()) > 0.01


def test_two_texts_score_by_the_similarity_of_their_vectors(encoder):
    url, reference = encoder
    expected = reference.similarity(reference.encode(QUERY), reference.encode(DOCUMENTS))[0]
    scores = [row["score"] for row in post(f"{url}/score", text_1=QUERY, text_2=DOCUMENTS)["data"]]
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.fixture(scope="module", params=ACTIVATIONS)
def cross_encoder(request, tmp_path_factory, serve: Callable[..., str]) -> tuple[str, CrossEncoder]:
    """The same for a model that reads both texts of a pair at once."""
    bert = save_encoder(tmp_path_factory.mktemp("pairs"), BertForSequenceClassification, num_labels=1)
    folder = tmp_path_factory.mktemp(request.param)
    CrossEncoder(str(bert), num_labels=1, activation_fn=ACTIVATIONS[request.param]).save_pretrained(str(folder))
    return serve("--model", folder), CrossEncoder(str(folder), device="cpu")


def test_pairs_score_as_predict_says(cross_encoder):
    url, reference = cross_encoder
    expected = reference.predict([(QUERY, document) for document in DOCUMENTS]).tolist()
    scores = [row["score"] for row in post(f"{url}/score", text_1=QUERY, text_2=DOCUMENTS)["data"]]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert max(scores) - min(scores) > 0.01


def test_documents_are_in_the_order_of_rank(cross_encoder):
    url, reference = cross_encoder
    expected = reference.rank(QUERY, DOCUMENTS)
    results = post(f"{url}/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [result["index"] for result in results] == [entry["corpus_id"] for entry in expected]
    found = [result["relevance_score"] for result in results]
    assert found == pytest.approx([float(entry["score"]) for entry in expected], abs=1e-5)
