"""Long texts: the event loop goes on, others are served meanwhile, and work ends with the client that wanted it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from atom_server.options import ServerOptions
from atom_server.schemas.tokens import MAX_TOKENS
from atom_server.scoring import lengths

WORDS = "The quick brown fox jumps over 13 lazy dogs. "


@contextmanager
def posting(server, path: str, body: bytes) -> Iterator[socket.socket]:
    """A connection that has sent a request, and is closed at the end whatever has come of it."""
    address = urlsplit(server.url)
    head = f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


def texts_in_work(server) -> int:
    """Pieces of work that wait or run in the threads for text."""
    pools = [server.engine.texts._short, server.engine.texts._long]
    frames = sys._current_frames()
    running = [frames.get(thread.ident) for pool in pools for thread in pool._threads]
    # A thread that waits for work is in `_worker` itself. The pool's own count of idle threads is too high at times.
    in_work = sum(frame is not None and frame.f_code.co_name != "_worker" for frame in running)
    return in_work + sum(pool._work_queue.qsize() for pool in pools)


def wait_until_a_text_is_in_work(server) -> None:
    deadline = time.monotonic() + 30
    while not texts_in_work(server):
        assert time.monotonic() < deadline, "no text came to be tokenized"
        time.sleep(0.01)


def wait_until_no_text_is_in_work(server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while texts_in_work(server):
        assert time.monotonic() < deadline, "the work goes on"
        time.sleep(0.02)


LARGEST = ServerOptions().max_body_bytes


@pytest.mark.timing
@pytest.mark.parametrize("size", [600_000, pytest.param(LARGEST // 15 - 100, marks=pytest.mark.slow)])
def test_fifteen_long_prompts_stall_nobody_and_end_with_their_client(server, size):
    """Each is cut to 5 tokens, so each is tokenized whole. The loop used to wait as long as each of them takes."""
    text = (WORDS * (size // len(WORDS) + 1))[:size]
    body = json.dumps({"prompt": [text] * 15, "truncate_prompt_tokens": 5, "max_tokens": 1}).encode()
    started = time.perf_counter()
    server.engine.tokenizer.encode_batch([text])
    for_one = time.perf_counter() - started
    assert len(body) <= LARGEST
    with server.longest_pause() as pause, posting(server, "/v1/completions", body):
        wait_until_a_text_is_in_work(server)
        assert server.post("/v1/completions", prompt=WORDS * 30, truncate_prompt_tokens=5, max_tokens=1).is_success
        assert texts_in_work(server)
        assert pause[0] < for_one / 2
    wait_until_no_text_is_in_work(server, 4 * for_one + 2)
    server.wait_until_idle()


def test_no_other_prompt_is_tokenized_once_the_client_is_gone(server, monkeypatch, caplog):
    calls, may_go_on = [], threading.Event()
    encode = server.engine.tokenizer.encode_up_to

    def counted(*given):
        calls.append(given)
        assert may_go_on.wait(30)
        return encode(*given)

    monkeypatch.setattr(server.engine.tokenizer, "encode_up_to", counted)
    body = json.dumps({"prompt": [WORDS * 1000] * 15, "truncate_prompt_tokens": 5, "max_tokens": 1}).encode()
    with caplog.at_level(logging.INFO, logger="atom_server.request"):
        with posting(server, "/v1/completions", body):
            while not calls:
                time.sleep(0.01)
        deadline = time.monotonic() + 15
        while not any(" 499" in message for message in caplog.messages):
            assert time.monotonic() < deadline, "nobody noticed"
            time.sleep(0.02)
    may_go_on.set()
    wait_until_no_text_is_in_work(server, 30)
    assert len(calls) == 1


def test_a_long_prompt_has_the_tokens_that_it_always_had(server):
    text = WORDS * 2000
    tokens = server.engine.tokenizer.encode(text)
    answer = server.post("/v1/completions", prompt=text, truncate_prompt_tokens=7, max_tokens=1, return_token_ids=True)
    assert answer.json()["choices"][0]["prompt_token_ids"] == tokens[-7:]
    assert server.post("/tokenize", prompt=text).json()["tokens"] == tokens


def test_a_long_text_can_be_counted_though_it_does_not_fit(server):
    message = [{"role": "user", "content": WORDS * 100}]
    counted = server.post("/v1/messages/count_tokens", messages=message).json()["input_tokens"]
    assert counted == server.post("/tokenize", messages=message).json()["count"] > 512


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(server):
    characters = server.engine.texts.most_characters_per_token * 512
    for text, message in ((" " * characters, "prompt has"), (" " * (characters + 1), "characters, which cannot fit")):
        error = server.post("/v1/completions", prompt=text).json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert message in error["message"]


def test_a_prompt_of_several_that_is_too_long_is_told_before_the_rest_is_tokenized(server):
    body = {"prompt": ["x y " * 600, *(["fine " * 400] * 1000)]}
    error = server.post("/v1/completions", **body).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert error["message"].startswith("prompt has ")


def test_prompts_of_token_ids_are_echoed_as_text(server):
    prompts = [server.engine.tokenizer.encode(text) for text in ("one two", "three")]
    answer = server.post("/v1/completions", prompt=prompts, echo=True, max_tokens=0).json()
    assert [choice["text"] for choice in answer["choices"]] == ["one two", "three"]


def test_no_more_tokens_become_text_than_the_model_can_have(server):
    assert server.post("/detokenize", tokens=[70] * 512).is_success
    error = server.post("/detokenize", tokens=[70] * 513).json()["error"]
    assert (error["param"], error["code"]) == ("tokens", "context_length_exceeded")


def test_token_ids_without_end_are_refused_by_their_number(server):
    body = b'{"tokens": [' + b"7," * MAX_TOKENS + b"7]}"
    headers = {"content-type": "application/json"}
    answer = httpx.post(server.url + "/detokenize", content=body, headers=headers, timeout=30)
    assert answer.status_code == 400
    assert str(MAX_TOKENS) in answer.json()["error"]["message"]


def test_a_query_is_tokenized_once_for_all_documents(server, monkeypatch):
    given = []
    encode = server.engine.texts.encode

    async def counted(texts, **options):
        given.extend(texts)
        return await encode(texts, **options)

    monkeypatch.setattr(server.engine.texts, "encode", counted)
    answer = server.post("/v1/rerank", query="sun", documents=["a", "b", "a"]).json()
    assert sorted(given) == ["a\n", "b\n", "sun"]
    assert len(answer["results"]) == 3


def test_pairs_that_repeat_a_long_text_too_often_are_refused(server, monkeypatch):
    monkeypatch.setattr(lengths, "MAX_TOTAL_TOKENS", 1000)
    error = server.post("/v1/rerank", query="long " * 100, documents=["a"] * 20).json()["error"]
    assert (error["param"], error["code"]) == ("documents", "too_many_tokens")


def test_a_document_that_does_not_fit_beside_the_query_is_told_before_anything_runs(server):
    error = server.post("/v1/rerank", query="zq" * 200, documents=["a", "zq" * 200]).json()["error"]
    assert (error["param"], error["code"]) == ("documents", "context_length_exceeded")


def test_bad_words_are_tokenized_once_for_all_prompts(server, monkeypatch):
    from atom_core.engine.inputs import input_processor

    calls = []
    find = input_processor.bad_words_token_ids
    monkeypatch.setattr(input_processor, "bad_words_token_ids", lambda *given: calls.append(given) or find(*given))
    answer = server.post("/v1/completions", prompt=["a", "b", "c"], bad_words=["x", "y"], max_tokens=1)
    assert answer.is_success
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["self", "messages_", "template", "text", "is_wanted", "variables"])
def test_variables_for_the_template_may_have_any_name(server, name):
    message = [{"role": "user", "content": "hi"}]
    answer = server.post("/v1/chat/completions", messages=message, chat_template_kwargs={name: 1}, max_tokens=1)
    assert answer.is_success


def test_a_variable_in_the_place_of_a_function_is_refused_by_its_name(server):
    body = {"messages": "hi", "chat_template_kwargs": {"range": 1}}
    error = server.post("/v1/chat/completions", **body).json()["error"]
    assert (error["param"], error["code"]) == ("chat_template_kwargs", "invalid_value")
