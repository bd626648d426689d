"""CLIP and SigLIP through `/v1/embeddings`: texts, and pictures as messages."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from running_server import RunningServer
from tiny_dual import FAMILIES, make_dual, noise, their_pictures, their_texts
from tiny_encoders import CLS, SEP

PICTURES = [noise(40, 60), noise(33, 32, 1)]


@pytest.fixture(scope="module", params=FAMILIES)
def dual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = make_dual(request.param, folder)
    with RunningServer(folder) as running:
        yield running, reference


def part(picture: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"},
    }


def message(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def vectors(answer: Any) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


def assert_same(found: list[list[float]], expected: torch.Tensor) -> None:
    normed = torch.nn.functional.normalize(expected, dim=1)
    torch.testing.assert_close(torch.tensor(found), normed, atol=1e-5, rtol=0)


def test_a_message_with_a_picture_gives_its_vector(dual):
    server, reference = dual
    found = [vectors(server.post("/v1/embeddings", messages=message(part(one))))[0] for one in PICTURES]
    assert_same(found, their_pictures(reference, PICTURES))


def test_texts_are_input_or_messages(dual):
    server, reference = dual
    tokens = server.post("/tokenize", prompt="where is the sea").json()["tokens"]
    assert (tokens[0], tokens[-1]) == (CLS, SEP)
    expected = their_texts(reference, [tokens])
    answer = server.post("/v1/embeddings", input=["where is the sea", tokens])
    assert_same(vectors(answer), expected.expand(2, -1))
    is_padded = reference.config.model_type == "siglip"
    assert answer.json()["usage"]["prompt_tokens"] == 2 * (12 if is_padded else len(tokens))
    assert_same(
        vectors(server.post("/v1/embeddings", messages=message({"type": "text", "text": "where is the sea"}))), expected
    )


@pytest.mark.parametrize(
    "messages",
    [
        message(part(PICTURES[0]), {"type": "text", "text": "sea"}),
        message(part(PICTURES[0]), part(PICTURES[1])),
        [*message(part(PICTURES[0])), *message(part(PICTURES[1]))],
        message({"type": "text", "text": ""}),
    ],
    ids=["a text beside a picture", "two pictures", "two messages", "nothing"],
)
def test_more_than_one_thing_is_refused(dual, messages: list[dict[str, Any]]):
    answer = dual[0].post("/v1/embeddings", messages=messages)
    assert answer.status_code == 400
    assert "a vector of a text or of a picture: send one message with one of them" in answer.json()["error"]["message"]


def test_another_pooling_is_refused_and_texts_are_ranked_by_their_vectors(dual):
    server, reference = dual
    refused = server.post("/v1/embeddings", input="sea", pooling="mean")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "pooling"
    texts = ["the sea", "the stone", "where is the river"]
    scores = server.post("/score", text_1=texts[0], text_2=texts).json()["data"]
    tokens = [server.post("/tokenize", prompt=text).json()["tokens"] for text in texts]
    normed = torch.nn.functional.normalize(their_texts(reference, tokens), dim=1)
    assert [entry["score"] for entry in scores] == pytest.approx((normed @ normed[0]).tolist(), abs=1e-4)
