"""A server with two engines: what it tells of each, and what it does when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from child_processes import children_of
from serving_processes import ENDLESS, Stream, exit_code, post


def get(running, path):
    return httpx.get(running.url + path, timeout=30)


def values(running, name):
    """The number of each engine under a name."""
    families = text_string_to_metric_families(get(running, "/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == f"atom:{name}"]
    return {sample.labels["engine"]: sample.value for sample in samples}


def until(condition, at_most=60.0):
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < at_most
        time.sleep(0.05)


def states(running):
    return [engine["state"] for engine in get(running, "/server_info").json()["engines"]]


def kill(running, rank):
    os.kill(get(running, "/server_info").json()["engines"][rank]["pid"], signal.SIGKILL)


def streams_of(running, num_tokens):
    return [Stream(running.url, ENDLESS | {"prompt": [5 + i] * 20, "max_tokens": num_tokens}) for i in range(4)]


def error_codes(streams):
    """The code of the error with which each stream ends; None where it ends well."""
    ends = []
    for stream in streams:
        *_, last, done = stream.finish()
        assert done == "data: [DONE]"
        ends.append(json.loads(last[6:]).get("error", {}).get("code"))
    return ends


def test_every_count_and_gauge_is_told_of_each_engine(two_engines):
    families = list(text_string_to_metric_families(get(two_engines, "/metrics").text))
    of_both = {
        family.name: {sample.labels["engine"] for sample in family.samples}
        for family in families
        if family.type in ("counter", "gauge", "histogram") and family.samples
    }
    only_by_reason = {"atom:request_success", "atom:admission_rejections"}
    assert {name for name, engines in of_both.items() if engines != {"0", "1"}} <= only_by_reason


def test_what_each_engine_served_is_counted_for_it(two_engines):
    names = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
    before = [values(two_engines, name) for name in names]
    asked = {"prompt": [[9] * 20, [8] * 20], "n": 2, "temperature": 1, "max_tokens": 4, "ignore_eos": True}
    assert two_engines.post("/v1/completions", **asked).status_code == 200
    two_engines.wait_until_idle()
    after = [values(two_engines, name) for name in names]
    grown = [[new[rank] - old.get(rank, 0) for rank in "01"] for old, new in zip(before, after, strict=True)]
    assert grown == [[20, 20], [8, 8], [2, 2]]


def test_the_server_lists_its_engines_and_is_well(two_engines):
    engines = get(two_engines, "/server_info").json()["engines"]
    assert [(engine["rank"], engine["state"], engine["num_restarts"]) for engine in engines] == [
        (0, "serving", 0),
        (1, "serving", 0),
    ]
    assert get(two_engines, "/health").json() == {"status": "ok"}


def test_administrators_reach_both(two_engines):
    assert two_engines.post("/pause").status_code == 200
    assert get(two_engines, "/is_paused").json() == {"is_paused": True}
    assert values(two_engines, "engine_paused") == {"0": 1, "1": 1}
    assert two_engines.post("/resume").status_code == 200
    assert two_engines.post("/reset_prefix_cache").status_code == 200
    assert two_engines.post("/sleep").status_code == 200
    assert get(two_engines, "/is_sleeping").json() == {"is_sleeping": True}
    assert two_engines.post("/wake_up").status_code == 200


def test_embeddings_come_from_both(two_engines):
    answer = two_engines.post("/v1/embeddings", input=[[9] * 20, [8] * 20])
    assert len(answer.json()["data"]) == 2


def test_one_engine_is_enough_and_the_server_says_what_became_of_the_other(two_engines):
    streams = streams_of(two_engines, 400)
    kill(two_engines, 1)
    assert sorted(map(str, error_codes(streams))) == ["None", "None", "engine_dead", "engine_dead"]
    health = get(two_engines, "/health")
    assert health.status_code == 200
    assert health.json()["status"] == "degraded"
    assert health.json()["detail"].startswith("1 of 2 engines serve; engine 1 is restarting: the engine's process was")
    assert post(two_engines).status_code == 200
    assert values(two_engines, "engine_serving") == {"0": 1, "1": 0}
    until(lambda: get(two_engines, "/health").json() == {"status": "ok"})
    assert values(two_engines, "engine_restarts_total") == {"0": 0, "1": 1}


@pytest.mark.slow
def test_a_server_outlives_its_engines_and_ends_with_the_last_one(serve_process):
    with serve_process("-dp", "2") as running:
        assert len(children_of(running.process.pid, "core_process")) == 2
        assert "2 engines (data parallel) on cpu" in running.text
        kill(running, 1)
        until(lambda: states(running) == ["serving", "restarting"])
        until(lambda: states(running) == ["serving", "serving"])
        kill(running, 1)
        until(lambda: states(running) == ["serving", "dead"])
        assert [post(running).status_code for _ in range(3)] == [200] * 3

        kill(running, 0)
        until(lambda: get(running, "/health").status_code == 503)
        assert post(running).json()["error"]["code"] == "engine_dead"
        until(lambda: get(running, "/health").status_code == 200)  # it had a life to spare
        kill(running, 0)
        assert exit_code(running) == 6
        running.wait_for_text()
        assert running.lines[-1].startswith("atom serve: none of 2 engines works: engine 0: the engine's process was")
        assert "Traceback" not in running.text


@pytest.mark.slow
def test_a_server_of_two_engines_drains(serve_process):
    with serve_process("-dp", "2") as running:
        streams = streams_of(running, 300)
        running.process.send_signal(signal.SIGTERM)
        assert error_codes(streams) == [None] * 4
        assert exit_code(running) == 0
