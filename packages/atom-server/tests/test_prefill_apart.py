"""A front over two servers: one computes prompts, the other goes on from them. Answers are those of a single server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from atom_server.cli.main import main
from routing_front import RunningFront

Pair = tuple[Any, Any]
"""A server that computes prompts, and one that goes on from them."""
LONG = [5 + i % 90 for i in range(100)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def pair(make_server: Callable[..., Any]) -> Iterator[Pair]:
    port = free_port()

    def start(role: str) -> Any:
        config = {"kv_connector": "TcpConnector", "kv_role": role, "kv_port": port, "kv_buffer_size": 1 << 20}
        return make_server(kv_transfer_config=config, num_kv_blocks=128)

    with start("kv_producer") as prefill, start("kv_consumer") as decode:
        yield prefill, decode


@pytest.fixture
def front(pair: Pair) -> Iterator[RunningFront]:
    with RunningFront(pair[0].url, pair[1].url) as front:
        yield front


def metric(server: Any, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(server.url + "/metrics", timeout=30).text)
    return next((sample.value for family in families for sample in family.samples if sample.name == "atom:" + name), 0)


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


@pytest.mark.parametrize(
    "also", [{}, {"n": 2, "seed": 3, "temperature": 1}, {"response_format": {"type": "json_object"}}]
)
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
    told = prefill.post("/v1/completions", **asked).json()["kv_transfer_params"]
    assert told["do_remote_prefill"] is True
    assert told["remote_num_tokens"] == 96
    answer = decode.post("/v1/completions", prompt=fresh(102), max_tokens=2, kv_transfer_params=told).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert "kv_transfer_params" not in answer


def test_what_cannot_be_divided_goes_to_the_decode_server_as_it_is(front: RunningFront, pair: Pair):
    before = metric(pair[0], "prompt_tokens_total")
    two = front.post("/v1/completions", prompt=[fresh(103), fresh(104)], max_tokens=2, ignore_eos=True)
    assert [choice["index"] for choice in two.json()["choices"]] == [0, 1]
    assert front.post("/v1/completions", prompt=fresh(105), max_tokens=2, prompt_logprobs=1).status_code == 200
    assert front.post("/tokenize", prompt="far away").json()["count"] > 0
    assert httpx.get(front.url + "/v1/models").json()["data"][0]["id"] == "tiny"
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


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--decode", "http://h:1"], "prefill names no server; give --prefill"),
        (["--prefill", "http://h:1"], "decode names no server"),
        (["--prefill", "h:1", "--decode", "http://h:1"], "'h:1' is not the URL of a server"),
        (["--prefill", "http://h:1", "--decode", "http://h:1", "--health-interval", "0"], "health_interval is 0"),
    ],
)
def test_settings_that_are_wrong_are_named_in_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
):
    assert main(["route", "--port", "0", *flags]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
