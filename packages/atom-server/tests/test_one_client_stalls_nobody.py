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
# What others may have to wait, in seconds of this process's own work on a quiet machine, and of it what the event loop
# may do at once.
MOST_SECONDS = 0.1
MOST_OF_THE_LOOP = 0.06

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


def a_list_of(item: bytes, number: int | None = None, *, behind: bytes = b"x") -> bytes:
    """So many, as many as fit the largest body by default, behind a text."""
    number = number or (LARGEST - len(behind)) // (len(item) + 1) - 10
    return b'{"prompt": "' + behind + b'", "list": [' + b",".join([item] * number) + b"]}"


def names(item: bytes, number: int) -> bytes:
    return b'{"prompt": "x", "names": {' + b",".join(item % place for place in range(number)) + b"}}"


LARGEST = ServerOptions().max_body_bytes
NESTED = b"[" * 50 + b"]" * 50
WIDE = "\U0001f3f4".encode()
LARGE_BODIES = {
    "lists within lists": (413, a_list_of(NESTED)),
    "some lists within lists": (200, a_list_of(NESTED, 3450)),
    "many names": (413, b"{" + b",".join(b'"%048d": 1' % number for number in range(500_000)) + b"}"),
    "many names with blanks behind them": (413, names(b'"%d"\n : 1', 106_000)),
    "some names": (200, names(b'"%d" : 1', 104_000)),
    "many short names": (400, b'{"prompt": "x",' + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}"),
    "many objects": (413, a_list_of(b'{"b":{}}', 60_000)),
    "some objects": (200, a_list_of(b'{"b":{}}', 58_000)),
    "objects within objects": (200, a_list_of(b'{"a" :' * 20 + b"1" + b"}" * 20, 4300)),
    "many empty lists": (413, a_list_of(b"[]", 260_000)),
    "some empty lists": (200, a_list_of(b"[]", 131_000)),
    "many long integers": (413, a_list_of(b"7" * 4000)),
    "some long integers": (200, a_list_of(b"7" * 4000, 320)),
    "many integers just beyond 64 bits": (413, a_list_of(b"7" * 20)),
    "many integers of 64 bits": (200, a_list_of(b"7" * 19 + b" " * 12)),
    "numbers that take long": (200, a_list_of(b"1234567890123456789.1234567890123456789e-330", 8192)),
    "many short texts": (200, a_list_of(b'"abcdefghijklmnopqrstuvw"', 520_000)),
    "many short texts of another script": (413, a_list_of('"中"'.encode(), 180_000)),
    "some short texts of another script": (200, a_list_of('"中中中中"'.encode(), 155_000)),
    "many short texts that are escaped": (413, a_list_of(rb'"\u4e2d"', 180_000)),
    "some short texts that are escaped": (200, a_list_of(rb'"\u4e2d"', 150_000)),
    "many escapes": (413, a_list_of(b'"' + rb"\n" * 10_000 + b'"')),
    "some escapes": (200, b'{"prompt": "' + rb"\u4e2d" * 1_380_000 + b'"}'),
    "a long text": (200, b'{"prompt": "' + "中".encode() * (LARGEST // 3 - 10) + b'"}'),
    "a wide character behind a long text": (200, b'{"prompt": "' + b"a" * (LARGEST - 30) + WIDE + b'"}'),
    "many values behind a long text": (413, a_list_of(NESTED, 3000, behind=b"a" * (LARGEST - 400_000) + WIDE)),
    "some values behind a long text": (200, a_list_of(NESTED, 1150, behind=b"a" * (LARGEST - 200_000) + WIDE)),
    "blanks": (200, b'{"prompt": "x"' + b" " * (LARGEST - 20) + b"}"),
    "a mistake behind many lists": (400, a_list_of(NESTED, 3450) + b"x"),
    "a mistake behind as much as is read again": (400, a_list_of(NESTED, 1250).ljust(2**17 - 1) + b"x"),
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


def floats(text: bytes, number: int) -> bytes:
    return b'{"a": [' + b",".join([text] * number) + b"]}"


@pytest.mark.parametrize("text", [b"1.5", b"1e5", b"-2E-330"])
def test_a_body_has_few_numbers_that_are_no_integers(text):
    """msgspec's own reader takes many times as long for the last one."""
    assert decode_json_object(floats(text, 8192)) == {"a": [float(text)] * 8192}
    with pytest.raises(APIError) as refused:
        decode_json_object(floats(text, 8193))
    told = "the body holds more than 8192 numbers with a point or an exponent"
    assert (refused.value.status, refused.value.message) == (413, told)


@pytest.mark.parametrize(
    "text", ["1e23", "9007199254740993e0", "7.7e-320", "1e-999", "-0.0", "0.1", "1.7976931348623157e308"]
)
def test_numbers_are_read_as_python_reads_them(text):
    assert repr(decode_json_object(b'{"a": %b}' % text.encode())["a"]) == repr(float(text))


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
    # Not MOST_OF_THE_LOOP: others that use the memory make long texts slower, which `slowness` does not see.
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
        lags.append(max(probe.worst / MOST_SECONDS, probe.own / MOST_OF_THE_LOOP) / slowness())
        if lags[-1] < 1:
            break
    assert min(lags) < 1


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
