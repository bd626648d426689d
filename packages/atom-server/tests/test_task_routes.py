"""Tasks of jina-embeddings-v3 over HTTP: `task`, or the model's name, chooses the adapter and the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from atom_core import LLMEngine
from running_server import RunningServer
from tiny_jina import TASKS, make_jina

TEXT = "where is the sea of stone"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jina")
    make_jina(folder, "jina")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer(folder) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str | None, list[float]]:
    """The vectors that an engine without a server gives."""
    with LLMEngine(str(folder), dtype="float32", num_threads=1) as engine:
        return {task: engine.embed(TEXT, task=task)[0] for task in (None, *TASKS)}


def vector(server: RunningServer, **fields) -> list[float]:
    return server.post("/v1/embeddings", input=TEXT, **fields).json()["data"][0]["embedding"]


def test_each_task_has_vectors_of_its_own(server: RunningServer, expected):
    for task, own in expected.items():
        assert vector(server, task=task) == pytest.approx(own, abs=1e-5)
    assert len({str(own) for own in expected.values()}) == len(TASKS) + 1


def test_a_task_may_be_named_as_the_model(server: RunningServer, expected):
    assert vector(server, model="retrieval.query") == pytest.approx(expected["retrieval.query"], abs=1e-5)
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed if model["parent"] == "tiny"] == [*TASKS]


def test_texts_are_scored_by_vectors_of_the_task_that_is_named_as_the_model(server: RunningServer):
    pair = {"text_1": "the sea", "text_2": "the stone"}
    first, second = (
        server.post("/v1/embeddings", input=text, task="retrieval.passage").json()["data"][0]["embedding"]
        for text in pair.values()
    )
    [entry] = server.post("/score", model="retrieval.passage", **pair).json()["data"]
    assert entry["score"] == pytest.approx(sum(a * b for a, b in zip(first, second, strict=True)), abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "retrieval"}, "task is 'retrieval'; this model has 'retrieval.query', 'retrieval.passage', 'separa"),
        ({"task": "separation", "model": "classification"}, "'model' names the adapter 'classification': leave one"),
    ],
)
def test_a_task_that_cannot_be_meant_is_refused(server: RunningServer, fields: dict, says: str):
    answer = server.post("/v1/embeddings", input=TEXT, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "task")
    assert says in error["message"]
