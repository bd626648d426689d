"""A front over two servers: one computes prompts, the other goes on from them. Answers are those of a single server.

Both are stopped and killed: prompts are computed again, and nobody hangs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from routing_front import RunningFront
from serving_processes import Stream, engine_pid

pytestmark = pytest.mark.slow

Pair = tuple[Any, Any]
"""A server that computes prompts, and one that goes on from them."""
LONG = [5 + i % 90 for i in range(100)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def pair(serve_process: Callable[..., Any]) -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def start(role: str) -> Any:
        config = {
            "kv_connector": "TcpConnector",
            "kv_role": role,
            "kv_port": port,
            "kv_buffer_size": 1 << 20,
            "kv_connector_extra_config": {"timeout": 3.0, "hold_seconds": 6.0},
        }
        return serve_process("--kv-transfer-config", json.dumps(config))

    with start("kv_producer") as prefill, start("kv_consumer") as decode:
        yield prefill, decode


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def front(pair: Pair) -> Iterator[RunningFront]:
    with RunningFront(pair[0].url, pair[1].url) as front:
        yield front


def metric(server: Any, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(server.url + "/metrics", timeout=30).text)
    return next((sample.value for family in families for sample in family.samples if sample.name == "atom:" + name), 0)


ASKED = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


def post(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(url + "/v1/completions", json=ASKED | fields, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def fresh(number: int) -> list[int]:
    """A prompt that nobody has sent before."""
    return [number, *LONG]


CHAT = {"messages": [{"role": "user", "content": "What is far away? " * 8}], "max_tokens": 6, "temperature": 0}


def test_a_completion_is_that_of_one_server_and_its_prompt_came_from_the_other(
    front: RunningFront, pair: Pair, server: Any
):
    asked = {"prompt": fresh(101), "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    expected = server.post("/v1/completions", **asked).json()
    answer = front.post("/v1/completions", **asked).json()
    assert answer["choices"] == expected["choices"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert metric(pair[1], "kv_transfer_fetched_blocks_total") >= 6
    assert metric(pair[1], "kv_transfer_failed_fetches_total") == 0


@pytest.mark.parametrize("also", [{}, {"n": 2, "seed": 3, "temperature": 1}, {"stop": ["e"], "max_tokens": 12}])
def test_a_chat_and_its_stream_are_those_of_one_server(front: RunningFront, server: Any, also: dict[str, Any]):
    expected = server.post("/v1/chat/completions", **CHAT | also).json()
    answer = front.post("/v1/chat/completions", **CHAT | also).json()
    assert answer["choices"] == expected["choices"]
    texts = [""] * len(expected["choices"])
    with httpx.stream("POST", front.url + "/v1/chat/completions", json=CHAT | also | {"stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line[6:])["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [choice["message"]["content"] for choice in expected["choices"]]


def test_answers_of_a_prefill_server_say_where_the_blocks_are(pair: Pair):
    prefill, decode = pair
    keep = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None, "remote_block_ids": None}
    asked = {"prompt": fresh(102), "max_tokens": 1, "kv_transfer_params": keep}
    told = post(prefill.url, **asked)["kv_transfer_params"]
    assert told["do_remote_prefill"] is True
    assert told["remote_num_tokens"] == 96
    answer = post(decode.url, prompt=fresh(102), kv_transfer_params=told)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert "kv_transfer_params" not in answer


def test_what_cannot_be_divided_goes_to_the_decode_server_as_it_is(front: RunningFront, pair: Pair):
    before = metric(pair[0], "prompt_tokens_total")
    two = front.post("/v1/completions", prompt=[fresh(103), fresh(104)], max_tokens=2, ignore_eos=True)
    assert [choice["index"] for choice in two.json()["choices"]] == [0, 1]
    assert front.post("/v1/completions", prompt=fresh(105), max_tokens=2, prompt_logprobs=1).status_code == 200
    assert front.post("/tokenize", prompt="far away").json()["count"] > 0
    assert len(httpx.get(front.url + "/v1/models").json()["data"]) == 1
    assert metric(pair[0], "prompt_tokens_total") == before


def test_errors_are_those_of_the_decode_server(front: RunningFront):
    answer = front.post("/v1/completions", prompt=fresh(106), max_tokens=-1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert (
        httpx.post(
            front.url + "/v1/completions", content=b"{", headers={"content-type": "application/json"}
        ).status_code
        == 400
    )
    assert httpx.get(front.url + "/nowhere").status_code == 404


def test_health_counts_the_servers(front: RunningFront):
    assert httpx.get(front.url + "/health").json() == {"prefill": 1, "decode": 1}


def test_without_a_prefill_server_the_decode_server_computes_prompts(pair: Pair):
    with RunningFront(f"http://127.0.0.1:{free_port()}", pair[1].url) as front:
        answer = front.post("/v1/completions", prompt=fresh(107), max_tokens=2, ignore_eos=True).json()
        assert answer["usage"]["completion_tokens"] == 2
        assert httpx.get(front.url + "/health").json() == {"prefill": 0, "decode": 1}


def test_without_a_decode_server_a_request_is_refused(pair: Pair):
    with RunningFront(pair[0].url, f"http://127.0.0.1:{free_port()}") as front:
        answer = front.post("/v1/completions", prompt=[5], max_tokens=2)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server")
        assert httpx.get(front.url + "/health").status_code == 503


def test_a_prefill_server_that_says_nothing_is_given_up(pair: Pair):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for settings in ({"health_timeout": 2.0}, {"prefill_timeout": 0.3, "health_timeout": 60.0}):
            with RunningFront(url, pair[1].url, **settings) as front:
                answer = front.post("/v1/completions", prompt=fresh(108), max_tokens=2, ignore_eos=True)
                assert answer.json()["usage"]["completion_tokens"] == 2


def test_a_second_decode_server_takes_over_from_one_that_is_gone(pair: Pair):
    gone = f"http://127.0.0.1:{free_port()}"
    with RunningFront(pair[0].url, f"{gone},{pair[1].url}") as front:
        assert front.post("/v1/completions", prompt=fresh(109), max_tokens=2).status_code == 200


def test_a_stream_whose_server_goes_away_ends_with_an_error(pair: Pair):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    begun = b'8\r\ndata: {"\r\n'
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    is_health = connection.recv(65536).startswith(b"GET")
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" if is_health else head + begun)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        asked = {"prompt": [5], "stream": True}
        with (
            RunningFront(pair[0].url, url) as front,
            httpx.stream("POST", front.url + "/v1/completions", json=asked, timeout=30) as stream,
        ):
            lines = [line for line in stream.iter_lines() if line]
    assert json.loads(lines[-2][6:])["error"]["code"] == "engine_dead"
    assert lines[-1] == "data: [DONE]"


def text_and_cached(answer: dict[str, Any]) -> tuple[str, int]:
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def expected(server: Any, number: int) -> str:
    return post(server.url, prompt=fresh(number))["choices"][0]["text"]


def told_by(prefill: Any, number: int) -> dict[str, Any]:
    keep = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
    return post(prefill.url, prompt=fresh(number), **keep)["kv_transfer_params"]


def test_an_engine_that_is_stopped_while_it_has_the_prompt_is_waited_for_briefly(pair: Pair, server: Any):
    prefill, decode = pair
    told = told_by(prefill, 201)
    with stopped(engine_pid(prefill)):
        begun = time.monotonic()
        answer = post(decode.url, prompt=fresh(201), kv_transfer_params=told)
        assert time.monotonic() - begun < 20
    assert text_and_cached(answer) == (expected(server, 201), 0)


def test_a_prefill_server_that_is_stopped_is_left_out(pair: Pair, server: Any):
    prefill, decode = pair
    with RunningFront(prefill.url, decode.url, health_timeout=3.0) as front:
        assert text_and_cached(post(front.url, prompt=fresh(202))) == (expected(server, 202), 96)
        with stopped(prefill.process.pid, engine_pid(prefill)):
            assert text_and_cached(post(front.url, prompt=fresh(203))) == (expected(server, 203), 0)
        wait_until_up(front, prefill=1)
        assert text_and_cached(post(front.url, prompt=fresh(204))) == (expected(server, 204), 96)


def test_a_decode_server_that_is_stopped_ends_its_streams_with_an_error(pair: Pair):
    prefill, decode = pair
    with RunningFront(prefill.url, decode.url, health_timeout=3.0) as front:
        endless = {"prompt": fresh(205), "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
        stream = Stream(front.url, endless)
        with stopped(decode.process.pid, engine_pid(decode)):
            *_, last, done = stream.finish()
        assert json.loads(last[6:])["error"]["code"] == "engine_dead"
        assert done == "data: [DONE]"
        wait_until_up(front, decode=1)


def test_servers_that_are_killed_cost_a_prompt_and_a_stream(pair: Pair, server: Any):
    prefill, decode = pair
    with RunningFront(prefill.url, decode.url, health_timeout=3.0) as front:
        told = told_by(prefill, 206)
        prefill.process.kill()
        prefill.process.wait(10)
        answer = post(decode.url, prompt=fresh(206), kv_transfer_params=told)
        assert text_and_cached(answer) == (expected(server, 206), 0)
        assert text_and_cached(post(front.url, prompt=fresh(207))) == (expected(server, 207), 0)
        endless = {"prompt": fresh(208), "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
        stream = Stream(front.url, endless)
        decode.process.kill()
        *_, last, done = stream.finish()
        assert json.loads(last[6:])["error"]["code"] == "engine_dead"
        assert done == "data: [DONE]"
        answer = httpx.post(front.url + "/v1/completions", json=ASKED | {"prompt": fresh(209)}, timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server")


def wait_until_up(front: RunningFront, **counts: int) -> None:
    deadline = time.monotonic() + 20
    while not counts.items() <= httpx.get(front.url + "/health", timeout=5).json().items():
        assert time.monotonic() < deadline
        time.sleep(0.05)
