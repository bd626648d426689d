"""What an administrator sees of the requests that are open, and does to them and to the engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import httpx
import pytest

from atom_server.observe import open_work
from serving_processes import ENDLESS, Stream

LONG = ENDLESS | {"n": 4, "temperature": 1}
FIELDS = {
    "id",
    "key",
    "age_s",
    "phases",
    "num_samples",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "output_tokens",
}


def get(server, path):
    return httpx.get(server.url + path, timeout=30)


@pytest.fixture
def paused(server, monkeypatch):
    """The shared server, whose engine stands still until the test ends; on a busy machine it may answer late."""
    monkeypatch.setattr(open_work, "ENGINE_SECONDS", 60.0)
    assert server.post("/pause").json() == {"status": "paused"}
    yield server
    assert server.post("/resume").json() == {"status": "ok"}
    server.wait_until_idle()


class Waiting:
    """A request that waits for its whole answer in a thread."""

    def __init__(self, server, **fields):
        self._thread = threading.Thread(target=self._ask, args=(server, fields))
        self._thread.start()

    def _ask(self, server, fields):
        self.answer = server.post("/v1/completions", **fields)

    def finish(self):
        self._thread.join(30)
        return self.answer


def wait_for_requests(server, count):
    """What is shown of so many requests, once the engine has them all."""
    deadline = time.monotonic() + 30
    while True:
        shown = get(server, "/debug/requests").json()["requests"]
        if len(shown) == count and all(one["phases"] for one in shown):
            return shown
        assert time.monotonic() < deadline


def test_a_request_is_shown_with_its_age_its_phase_and_its_tokens_and_without_text(paused):
    waiting = Waiting(paused, prompt="a secret", max_tokens=3, n=2)
    [shown] = wait_for_requests(paused, 1)
    assert set(shown) == FIELDS
    assert shown["phases"] == {"waiting": 2}
    assert (shown["num_samples"], shown["computed_tokens"], shown["output_tokens"]) == (2, 0, 0)
    assert shown["prompt_tokens"] == len(paused.engine.tokenizer.encode("a secret"))
    assert wait_for_requests(paused, 1)[0]["age_s"] > shown["age_s"]
    answer = get(paused, "/debug/requests")
    assert (answer.json()["engine"], answer.json()["not_generating"]) == ("paused", [])
    assert "secret" not in answer.text
    paused.post("/resume")
    assert waiting.finish().json()["id"] == shown["id"]
    assert get(paused, "/debug/requests").json() == {"engine": "works", "requests": [], "not_generating": []}


def test_a_request_whose_body_is_still_coming_is_shown_too(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as half:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99"
        )
        half.sendall(f"{head}\r\nX-Request-Id: half-1\r\n\r\n{{".encode())
        deadline = time.monotonic() + 30
        while not (shown := get(server, "/debug/requests").json()["not_generating"]):
            assert time.monotonic() < deadline
    assert [(each["request_id"], each["phase"]) for each in shown] == [("half-1", "preparing")]


def test_a_stopped_engine_leaves_no_question_without_an_answer(server):
    stream = Stream(server.url, LONG)
    os.kill(server.engine.pid, signal.SIGSTOP)
    try:
        answer = get(server, "/debug/requests").json()
    finally:
        os.kill(server.engine.pid, signal.SIGCONT)
    assert answer["engine"].startswith("has not answered within 1 s")
    assert len(answer["requests"]) <= 1
    assert stream.finish()[-1] == "data: [DONE]"
    server.wait_until_idle()


def test_requests_are_ended_by_the_ids_of_their_answers(paused):
    ended, other = (Waiting(paused, prompt="x", max_tokens=2, request_id=name) for name in ("ended", "other"))
    wait_for_requests(paused, 2)
    assert paused.post("/abort_requests", request_ids=["cmpl-ended", "cmpl-nobody"]).json() == {
        "aborted": ["cmpl-ended"]
    }
    answer = ended.finish()
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "aborted")
    paused.post("/resume")
    assert other.finish().status_code == 200


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}], ids=["whole", "streamed", "several"])
def test_a_request_that_waits_is_gone_once_its_client_leaves(paused, fields):
    wanted = {"prompt": [9] * 40, "max_tokens": 2} | fields
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(paused.url + "/v1/completions", json=wanted, timeout=0.3)
    deadline = time.monotonic() + 30
    while get(paused, "/debug/requests").json() != {"engine": "paused", "requests": [], "not_generating": []}:
        assert time.monotonic() < deadline
    assert not paused.state.active


def test_all_requests_are_ended_at_once(server):
    streams = [Stream(server.url, LONG) for _ in range(2)]
    server.post("/pause")
    ids = {each["id"] for each in get(server, "/debug/requests").json()["requests"]}
    assert set(server.post("/abort_requests", abort_all=True).json()["aborted"]) == ids
    server.post("/resume")
    assert [stream.finish()[-1] for stream in streams] == ["data: [DONE]"] * 2
    server.wait_until_idle()


def test_a_pause_can_end_what_is_open(paused):
    waiting = Waiting(paused, prompt="x", max_tokens=2)
    wait_for_requests(paused, 1)
    assert paused.post("/pause?mode=abort").status_code == 200
    assert waiting.finish().json()["error"]["code"] == "aborted"


def test_a_paused_server_is_healthy_and_not_ready(paused):
    assert get(paused, "/is_paused").json() == {"is_paused": True}
    assert get(paused, "/health").status_code == 200
    answer = get(paused, "/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "paused")
    paused.post("/resume")
    assert get(paused, "/ready").status_code == 200
    assert get(paused, "/is_paused").json() == {"is_paused": False}


def test_a_mode_that_is_none_is_refused(server):
    answer = server.post("/pause?mode=wait")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")
    assert get(server, "/ready").status_code == 200


def test_after_a_reset_no_prompt_finds_what_was_cached(server):
    def num_cached():
        answer = server.post("/v1/completions", prompt=[51] * 48, max_tokens=1).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [num_cached(), num_cached()] == [0, 32]
    assert server.post("/reset_prefix_cache").json() == {"status": "ok"}
    assert num_cached() == 0


@pytest.fixture(scope="module")
def sleeper(make_server):
    with make_server(max_num_seqs=4) as server:
        yield server


ASKED = {"prompt": [7] * 40, "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def answered(server):
    answer = server.post("/v1/completions", **ASKED).json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("level", [1, 2])
def test_a_server_that_slept_gives_the_same_answers_from_an_empty_cache(sleeper, level):
    before, _ = answered(sleeper)
    assert answered(sleeper)[1] == 32
    assert sleeper.post(f"/sleep?level={level}").json() == {"status": "sleeping"}
    assert get(sleeper, "/is_sleeping").json() == {"is_sleeping": True}
    assert sleeper.post("/wake_up").json() == {"status": "ok"}
    assert get(sleeper, "/is_sleeping").json() == {"is_sleeping": False}
    assert answered(sleeper) == (before, 0)


def test_a_sleeping_server_is_healthy_and_refuses_requests(sleeper):
    open_one = Stream(sleeper.url, LONG)
    assert sleeper.post("/sleep").status_code == 200
    assert json.loads(open_one.finish()[-2][6:])["error"]["code"] == "aborted"
    assert get(sleeper, "/health").status_code == 200
    assert get(sleeper, "/ready").json()["error"]["code"] == "sleeping"
    refused = sleeper.post("/v1/completions", **ASKED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
    assert int(refused.headers["retry-after"]) > 0
    again = sleeper.post("/sleep?level=2")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "engine_busy")
    state = 'engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 1.0'
    assert state in get(sleeper, "/metrics").text
    assert [sleeper.post("/wake_up").status_code for _ in range(2)] == [200, 200]
    assert answered(sleeper)[0]


@pytest.mark.parametrize("level", ["0", "3", "deep"])
def test_a_level_that_is_none_is_refused(server, level):
    answer = server.post(f"/sleep?level={level}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "level")
