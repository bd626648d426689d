"""Whatever one client sends, the event loop stays free for the others."""

from __future__ import annotations

import json
import time
import tracemalloc

import msgspec
import pytest

from atom_server.answers.whole_answer import encode_in_parts
from atom_server.bodies.body import decode_json_object, parse_object
from atom_server.bodies.decoding_cost import MAX_VALUES, DecodingCost
from atom_server.errors import APIError
from atom_server.options import ServerOptions
from atom_server.schemas.answers import TextChoice, TextCompletion, TextLogprobs
from atom_server.schemas.completions import CompletionRequest
from loop_lag import LagProbe, send
from machine_speed import slowness

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
# What others may have to wait, in seconds of this process's own work; a server alone on its machine keeps to half.
MOST_SECONDS = 0.1

IDS = [5, 6, 7]
STREAM = {"prompt": "x", "n": 512, "max_tokens": 8, "ignore_eos": True, "stream": True, "logprobs": 5}
USAGE = {"continuous_usage_stats": True, "include_usage": True}
LONG_PARAMETERS = {
    "allowed_token_ids": list(range(500)),
    "bad_words": [f"word {place}" for place in range(128)],
    "stop": ["x" * 256] * 16,
}
REQUESTS = {
    "2048 prompts": (200, TEXT, {"prompt": [IDS] * 2048, "max_tokens": 1, "ignore_eos": True}),
    "2048 prompts, and leaves": (None, TEXT, {"prompt": [IDS] * 2048, "max_tokens": 400, "ignore_eos": True}),
    "2048 prompts with n = 64": (400, TEXT, {"prompt": [IDS] * 2048, "n": 64}),
    "n of a thousand million": (400, TEXT, {"prompt": "x", "n": 10**9}),
    "n of a thousand million in a chat": (400, CHAT, {"messages": "x", "n": 10**9}),
    "512 streams in one": (200, TEXT, STREAM | {"stream_options": USAGE}),
    "many logprobs of a prompt": (
        200,
        TEXT,
        {"prompt": [[5] * 500] * 4, "n": 4, "max_tokens": 1, "echo": True, "logprobs": 20},
    ),
    "many logprobs of an answer": (
        200,
        CHAT,
        {"messages": "x", "n": 128, "max_tokens": 20, "ignore_eos": True, "logprobs": True, "top_logprobs": 20},
    ),
    "long parameters for 2048 prompts": (200, TEXT, LONG_PARAMETERS | {"prompt": [IDS] * 2048, "max_tokens": 1}),
    "2048 embeddings": (200, "/v1/embeddings", {"input": [IDS] * 2048}),
    "14 KB of rerank": (400, "/v1/rerank", {"query": "a " * 2000, "documents": ["a"] * 2048}),
    "rerank that fits": (200, "/v1/rerank", {"query": "a " * 100, "documents": ["a"] * 2048}),
    "scores": (400, "/v1/score", {"text_1": "a " * 2000, "text_2": ["b"] * 2048}),
    "scores of pairs": (200, "/v1/score", {"text_1": ["a " * 50] * 1024, "text_2": ["b " * 50] * 1024}),
    "16 MB of embeddings": (400, "/v1/embeddings", {"input": ["a " * 3800] * 2000}),
    "embeddings of many ids": (None, "/v1/embeddings", {"input": [[5] * 230] * 2040}),
    "a million values": (413, TEXT, {"prompt": [5] * 2**20}),
    "a bad value that is long": (400, TEXT, {"prompt": "x", "logit_bias": [[5] * 400_000]}),
}


def a_list_of(item: bytes, separator: bytes = b",") -> bytes:
    """As many as fit the largest body."""
    return b'{"prompt": "x", "list": [' + separator.join([item] * (LARGEST // (len(item) + 1) - 10)) + b"]}"


LARGEST = ServerOptions().max_body_bytes
LARGE_BODIES = {
    "lists within lists": (413, a_list_of(b"[" * 28 + b"]" * 28)),
    "many names": (413, b"{" + b",".join(b'"%048d": 1' % number for number in range(500_000)) + b"}"),
    "many short names": (400, b'{"prompt": "x",' + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}"),
    "many objects": (200, b'{"prompt": "x", "list": [' + b",".join([b'{"b":{}}'] * 60_000) + b"]}"),
    "many empty lists": (200, b'{"prompt": "x", "list": [' + b",".join([b"[]"] * 260_000) + b"]}"),
    "many numbers that have no end": (400, b'{"prompt": [' + b",".join([b"0." + b"7" * 17] * 500_000)),
    "many long integers": (413, a_list_of(b"7" * 4000)),
    "some long integers": (200, b'{"prompt": "x", "list": [' + b",".join([b"7" * 4000] * 320) + b"]}"),
    "many integers just beyond 64 bits": (413, a_list_of(b"7" * 20)),
    "many integers of 64 bits": (200, a_list_of(b"7" * 19 + b" " * 12)),
    "many escapes": (413, a_list_of(b'"' + rb"\n" * 10_000 + b'"')),
    "some escapes": (200, b'{"prompt": "' + rb"\u4e2d" * 2**21 + b'"}'),
    "a long text": (200, b'{"prompt": "' + "中".encode() * (LARGEST // 3 - 10) + b'"}'),
    "blanks": (200, b'{"prompt": "x"' + b" " * (LARGEST - 20) + b"}"),
}


def status_of(body: bytes) -> int:
    """What a completion of this body is answered with, when all of it is checked here; counted as it comes."""
    try:
        parse_object(CompletionRequest, decode_json_object(body))
    except APIError as refused:
        return refused.status
    return 200


def count(body: bytes) -> float:
    """Seconds that counting what takes time takes at most between two pieces of the body."""
    cost, worst = DecodingCost(), 0.0
    for start in range(0, len(body), 2**16):
        started = time.thread_time()
        cost.add(body[start : start + 2**16])
        worst = max(worst, time.thread_time() - started)
    return worst


@pytest.mark.parametrize("name", [name for name, (status, _) in LARGE_BODIES.items() if status == 413])
def test_a_body_that_would_take_long_is_refused_before_it_is_decoded(name):
    with pytest.raises(APIError, match="values, names, escapes and long numbers") as refused:
        count(LARGE_BODIES[name][1])
    assert refused.value.status == 413


@pytest.mark.parametrize("number", [*(bytes([digit]) * 20 for digit in b"0123456789"), b"0123456789" * 2])
def test_a_number_of_20_digits_counts_as_eight_values_whatever_its_digits(number):
    most, cost = (MAX_VALUES + 1024) // 8, DecodingCost()
    cost.add((number + b" ") * most)
    with pytest.raises(APIError, match="long numbers"):
        cost.add(number)


@pytest.mark.parametrize("text", [b"7" * 19, b"7" * 10 + b"/" + b"7" * 10, b"7" * 10 + b";" + b"7" * 10])
def test_shorter_numbers_count_by_what_follows_them(text):
    DecodingCost().add((text + b" ") * (MAX_VALUES // 8 + 1024))


@pytest.mark.timing
@pytest.mark.parametrize("name", [name for name, (status, _) in LARGE_BODIES.items() if status != 413])
def test_no_body_takes_long_to_check(name):
    expected, body = LARGE_BODIES[name]
    assert len(body) <= LARGEST
    seconds = []
    for _ in range(3):
        longest_count = count(body)
        started = time.thread_time()
        assert status_of(body) == expected
        seconds.append(longest_count + time.thread_time() - started)
    assert min(seconds) / slowness() < MOST_SECONDS


@pytest.mark.timing
@pytest.mark.parametrize("name", REQUESTS)
def test_no_request_holds_up_the_others(server, name):
    expected, path, fields = REQUESTS[name]
    content = json.dumps(fields).encode()
    server.post(TEXT, prompt="warm", max_tokens=1)
    lags = []
    for _ in range(3):  # the best of three: collecting garbage of other tests is not of this one
        with LagProbe(server) as probe:
            status = send(server, path, content, leave_after=0.5 if expected is None else None)
            server.wait_until_idle(seconds=60)
        assert status == (expected or 0)
        lags.append(probe.worst / slowness())
        if lags[-1] < MOST_SECONDS:
            break
    assert min(lags) < MOST_SECONDS


@pytest.mark.parametrize(("length", "order"), [(10, ["checked", "others"]), (2**17, ["others", "checked"])])
def test_others_have_a_turn_between_decoding_a_long_body_and_checking_it(server, monkeypatch, length, order):
    happened = []

    def decode(content):
        server.loop.call_soon(happened.append, "others")
        return decode_json_object(content)

    def parse(schema, values):
        happened.append("checked")
        return parse_object(schema, values)

    monkeypatch.setattr("atom_server.routes.accepted.decode_json_object", decode)
    monkeypatch.setattr("atom_server.routes.accepted.parse_object", parse)
    assert server.post("/v1/completions", prompt="x", max_tokens=1, ignored="x" * length).status_code == 200
    assert happened == order


def test_nothing_is_made_for_samples_that_are_refused(server):
    """Judged by the most that this process held meanwhile: its size may not change, where it has room already."""
    tracemalloc.start()
    try:
        for n in (10**9, 65_536, 2560):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            assert server.post(TEXT, prompt=["x"] * 2048, n=n).status_code == 400
            assert tracemalloc.get_traced_memory()[1] - before < 20_000_000
    finally:
        tracemalloc.stop()


def test_an_answer_encoded_in_parts_is_the_same_json():
    logprobs = TextLogprobs(["a"] * 500, [None, *[-1.5] * 499], [None, *[{"b": -0.5}] * 499], list(range(500)))
    choices = [TextChoice(0, "x", logprobs), TextChoice(1, "y", prompt_token_ids=list(range(1000))), TextChoice(2, "")]
    for answer in (
        TextCompletion("id", 1, "m", choices),
        TextCompletion("id", 1, "m", []),
        TextCompletion("id", 1, "m", choices[2:]),
        {"plain": [1, 2]},
    ):
        assert msgspec.json.decode(encode_in_parts(answer)) == msgspec.json.decode(msgspec.json.encode(answer))
