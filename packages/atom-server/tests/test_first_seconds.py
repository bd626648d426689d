"""The default model is served seconds after its process began, and a first token comes at once."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from machine_speed import pace

READY_S, FIRST_TOKEN_S = 5.0, 0.2
# Where the same work takes so many times longer than on a quiet machine, these seconds are those of others.
QUIET = 1.5
ASKED = {"messages": [{"role": "user", "content": "Hello, who are you?"}], "max_tokens": 4, "stream": True}


def seconds_to_first_token(client: httpx.Client) -> float:
    started = time.monotonic()
    with client.stream("POST", "/v1/chat/completions", json=ASKED) as answer:
        assert answer.status_code == 200
        next(line for line in answer.iter_lines() if '"content":"' in line and '"content":""' not in line)
        return time.monotonic() - started


@pytest.mark.slow
@pytest.mark.timing
def test_smollm2_is_ready_within_five_seconds_and_its_first_token_comes_within_a_fifth(serve_process):
    slower = pace()
    flags = ("--model", "smollm2", "--dtype", "auto", "--num-kv-blocks", "64")
    with serve_process(*flags) as served, httpx.Client(base_url=served.url, timeout=60) as client:
        # What a client does once, imports and its TLS context among it, is no part of a server's time.
        client.get("/health")
        [ready] = [float(found[1]) for line in served.lines if (found := re.match(r"\s*started in +([\d.]+) s", line))]
        firsts = [seconds_to_first_token(client) for _ in range(3)]
        slower = max(slower, pace())
    told = f"ready after {ready} s, first tokens after {firsts} s, {slower:.1f} times slower than a quiet machine"
    print(f"\n{told}")
    if slower > QUIET:
        pytest.skip(f"others use this machine: {told}")
    slower = max(slower, 1.0)
    assert (ready < READY_S * slower, firsts[0] < FIRST_TOKEN_S * slower) == (True, True), told
