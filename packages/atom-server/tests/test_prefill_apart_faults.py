"""Processes of prefill and decode servers are stopped and killed: prompts are computed again, and nobody hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from routing_front import RunningFront
from serving_processes import Stream, engine_pid

pytestmark = pytest.mark.slow

Pair = tuple[Any, Any]
ASKED = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


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


def prompt(number: int) -> list[int]:
    return [number, *(5 + i % 90 for i in range(100))]


def post(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(url + "/v1/completions", json=ASKED | fields, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_and_cached(answer: dict[str, Any]) -> tuple[str, int]:
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def expected(server: Any, number: int) -> str:
    return post(server.url, prompt=prompt(number))["choices"][0]["text"]


def told_by(prefill: Any, number: int) -> dict[str, Any]:
    keep = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
    return post(prefill.url, prompt=prompt(number), **keep)["kv_transfer_params"]


def test_an_engine_that_is_stopped_while_it_has_the_prompt_is_waited_for_briefly(pair: Pair, server: Any):
    prefill, decode = pair
    told = told_by(prefill, 201)
    with stopped(engine_pid(prefill)):
        begun = time.monotonic()
        answer = post(decode.url, prompt=prompt(201), kv_transfer_params=told)
        assert time.monotonic() - begun < 20
    assert text_and_cached(answer) == (expected(server, 201), 0)


def test_a_prefill_server_that_is_stopped_is_left_out(pair: Pair, server: Any):
    prefill, decode = pair
    with RunningFront(prefill.url, decode.url, health_timeout=3.0) as front:
        assert text_and_cached(post(front.url, prompt=prompt(202))) == (expected(server, 202), 96)
        with stopped(prefill.process.pid, engine_pid(prefill)):
            assert text_and_cached(post(front.url, prompt=prompt(203))) == (expected(server, 203), 0)
        wait_until_up(front, prefill=1)
        assert text_and_cached(post(front.url, prompt=prompt(204))) == (expected(server, 204), 96)


def test_a_decode_server_that_is_stopped_ends_its_streams_with_an_error(pair: Pair):
    prefill, decode = pair
    with RunningFront(prefill.url, decode.url, health_timeout=3.0) as front:
        endless = {"prompt": prompt(205), "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
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
        answer = post(decode.url, prompt=prompt(206), kv_transfer_params=told)
        assert text_and_cached(answer) == (expected(server, 206), 0)
        assert text_and_cached(post(front.url, prompt=prompt(207))) == (expected(server, 207), 0)
        endless = {"prompt": prompt(208), "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
        stream = Stream(front.url, endless)
        decode.process.kill()
        *_, last, done = stream.finish()
        assert json.loads(last[6:])["error"]["code"] == "engine_dead"
        assert done == "data: [DONE]"
        answer = httpx.post(front.url + "/v1/completions", json=ASKED | {"prompt": prompt(209)}, timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server")


def wait_until_up(front: RunningFront, **counts: int) -> None:
    deadline = time.monotonic() + 20
    while not counts.items() <= httpx.get(front.url + "/health", timeout=5).json().items():
        assert time.monotonic() < deadline
        time.sleep(0.05)
