"""What one client asks of grammars ends that client's request at most: the others get the same answers as before."""

from __future__ import annotations

import contextlib
import threading

import httpx
import pytest

TEXT = "/v1/completions"
PROBE = {"prompt": "once", "max_tokens": 40, "temperature": 1, "seed": 7, "ignore_eos": True}
REQUIRED = {f"p{index}": {"type": "integer", "multipleOf": 2_999_999 + 2 * index} for index in range(8)}
# Each stopped the engine or its server once.
HOSTILE = {
    "88 bytes": {"n": 16, "regex": "a{65535}"},
    "a long run": {"n": 16, "regex": "a{5000}"},
    "repeats of repeats": {"regex": "((a{1000}){1000}){999}"},
    "large steps": {"json": {"type": "object", "properties": REQUIRED, "required": list(REQUIRED)}},
    "a long text": {"n": 16, "json": {"const": "ab" * 15_000}},
}


def asked(fields):
    constraint = {kind: value for kind, value in fields.items() if kind != "n"}
    return {"prompt": "x", "max_tokens": 120, "n": fields.get("n", 1), "structured_outputs": constraint}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_others_get_the_same_tokens_while_a_hostile_grammar_is_followed(server, fields):
    before = server.post(TEXT, **PROBE).json()["choices"]
    statuses = []
    attack = threading.Thread(target=lambda: statuses.append(server.post(TEXT, **asked(fields)).status_code))
    attack.start()
    during = [server.post(TEXT, **PROBE).json()["choices"] for _ in range(3)]
    attack.join(60)
    assert during == [before] * 3
    assert statuses in ([200], [400])
    server.wait_until_idle()
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_a_client_that_leaves_a_hostile_grammar_leaves_nothing_behind(server, fields):
    with contextlib.suppress(httpx.TimeoutException):  # some are refused before that
        httpx.post(server.url + TEXT, json=asked(fields), timeout=0.05)
    server.wait_until_idle(20)
    assert server.post(TEXT, **PROBE).status_code == 200
