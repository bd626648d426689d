"""Constraints by HTTP: the answer follows them, streamed or not, in chat and in text."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atom_core import StructuredOutputParams
from atom_core.structured_output import GrammarCompiler
from atom_core.structured_output.compiler import NUM_THREADS, QUEUE_SECONDS

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}


def check_place(text: str) -> None:
    place = json.loads(text)
    assert set(place) == {"city", "size"}
    assert place["size"] in ("small", "large")
    assert len(place["city"]) <= 6


def test_a_chat_answer_follows_its_schema(client):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=FORMAT, n=3, max_tokens=200, seed=1
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        check_place(choice.message.content)


def test_a_streamed_answer_follows_its_schema(client):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=FORMAT, max_tokens=200, seed=2, stream=True
    )
    check_place("".join(chunk.choices[0].delta.content or "" for chunk in stream))


def test_a_json_object_is_one(server):
    answer = server.post(
        "/v1/chat/completions", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=8, seed=1
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"choice": ["red", "blue"]}, {"red", "blue"}),
        ({"regex": "a|bb"}, {"a", "bb"}),
        ({"grammar": 'root ::= "up" | "down"'}, {"up", "down"}),
        ({"json": {"enum": ["on", "off"]}}, {'"on"', '"off"'}),
        ({"json": '{"const": 5}'}, {"5"}),
    ],
)
def test_text_follows_structured_outputs(server, constraint, allowed):
    answer = server.post("/v1/completions", prompt="hello", structured_outputs=constraint, n=4, max_tokens=20)
    assert answer.status_code == 200, answer.text
    assert {choice["text"] for choice in answer.json()["choices"]} <= allowed
    assert "x-atom-ignored-fields" not in answer.headers


def test_each_of_several_prompts_follows_the_constraint(server):
    answer = server.post(
        "/v1/completions", prompt=["a", "b", "c"], structured_outputs={"choice": ["red", "blue"]}, max_tokens=20
    )
    assert [choice["text"] in ("red", "blue") for choice in answer.json()["choices"]] == [True] * 3


def test_plain_text_is_a_response_format_too(server):
    answer = server.post("/v1/chat/completions", messages=MESSAGES, response_format={"type": "text"}, max_tokens=2)
    assert answer.status_code == 200


def test_bad_words_are_left_out(server):
    for word, other in ("ab", "ba"):
        answer = server.post(
            "/v1/completions", prompt="hello", structured_outputs={"regex": "a|b"}, bad_words=[word], n=4, max_tokens=4
        )
        assert {choice["text"] for choice in answer.json()["choices"]} == {other}


def test_an_aborted_constrained_stream_frees_its_place(server, client):
    stream = client.completions.create(
        model="tiny",
        prompt="hello",
        max_tokens=400,
        stream=True,
        extra_body={"structured_outputs": {"regex": "[a-z]*"}},
    )
    next(iter(stream))
    stream.close()
    server.wait_until_idle()


def test_a_tag_that_only_xgrammar_follows_is_refused_where_llguidance_serves(make_server):
    tag = {"format": {"type": "repeat", "min": 1, "max": 2, "content": {"type": "const_string", "value": "a"}}}
    with make_server(structured_output_backend="llguidance") as server:
        for stream in (False, True):
            answer = server.post(
                "/v1/completions", prompt="x", structured_outputs={"structural_tag": tag}, stream=stream
            )
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, "structured_outputs", "invalid_grammar")
            assert "structured_output_backend is llguidance" in error["message"]


def test_a_grammar_that_nobody_has_time_for_is_an_overload(server, monkeypatch):
    """Both threads of the compiler are at work on others, for longer than anybody should wait."""
    now, release = [0.0], threading.Event()
    busy = GrammarCompiler(lambda params: release.wait(60), clock=lambda: now[0])
    monkeypatch.setattr(server.engine._inputs, "_grammars", busy)
    others = [busy.submit(StructuredOutputParams(regex=f"busy{number}")) for number in range(NUM_THREADS)]
    while not all(other.grammar.running() for other in others):
        time.sleep(0.01)
    with ThreadPoolExecutor(1) as thread:
        fields = {"prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": "a+"}}
        asking = thread.submit(server.post, "/v1/completions", **fields)
        while len(busy) <= NUM_THREADS:
            time.sleep(0.01)
        now[0] += QUEUE_SECONDS + 1
        answer = asking.result(30)
    release.set()
    busy.close()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (503, "queue_full", "structured_outputs")
    assert int(answer.headers["retry-after"]) >= 1
