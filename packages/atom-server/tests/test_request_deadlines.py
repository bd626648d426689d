"""`--max-request-seconds`: what clients are told of a request that takes too long."""

from __future__ import annotations

import json

import pytest

from serving_processes import Stream

ENDLESS = {"prompt": "once", "max_tokens": 500, "ignore_eos": True, "temperature": 0, "n": 8}


@pytest.fixture(scope="module")
def hasty(make_server):
    with make_server(max_request_seconds=0.05) as server:
        yield server


def test_an_answer_that_takes_too_long_is_504(hasty):
    answer = hasty.post("/v1/completions", **ENDLESS)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (504, "request_timeout")
    assert error["message"] == "the request took too long: it was not finished within 0.05 s (max_request_seconds)"
    hasty.wait_until_idle()


def test_a_stream_that_takes_too_long_ends_with_an_error_event(hasty):
    *_, error, done = Stream(hasty.url, ENDLESS | {"stream": True}).finish()
    assert json.loads(error[6:])["error"]["code"] == "request_timeout"
    assert done == "data: [DONE]"
