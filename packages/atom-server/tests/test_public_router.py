"""vLLM's router sends prompts where they are cached: by our KV events, our `/tokenize` and our `/health`."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time

import httpx
import pytest

ROUTER = shutil.which("vllm-router")

pytestmark = pytest.mark.skipif(ROUTER is None, reason="vllm-router is not installed (pip install vllm-router)")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def answers(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url + "/health").status_code == 200
    return False


@contextlib.contextmanager
def routing(servers, model):
    """The address of a router over servers, given as addresses of their HTTP and of their events."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    sources = [flag for server, events in servers.items() for flag in ("--kv-event-source", f"{server}={events}")]
    command = [ROUTER, "--port", str(port), "--prometheus-port", str(free_port()), "--worker-urls", *servers]
    process = subprocess.Popen(
        [*command, "--policy", "kv_aware", "--kv-event-model", model, *sources], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while not answers(url):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def cached_tokens(url, prompt):
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0}
    answer = httpx.post(url + "/v1/completions", json=fields, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_goes_to_the_server_that_has_its_beginning(serve_process):
    events = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    with contextlib.ExitStack() as stack:
        started = [
            serve_process(
                "--served-model-name", "tiny",
                "--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint}),
            )
            for endpoint in events
        ]  # fmt: skip
        servers = [stack.enter_context(server).url for server in started]
        router = stack.enter_context(routing(dict(zip(servers, events, strict=True)), "tiny"))
        for number, server in enumerate([servers[1], servers[0], servers[1], servers[1]]):
            prompt = f"{number} one two three " * 20
            assert cached_tokens(server, prompt) == 0
            time.sleep(0.3)  # events are on their way
            assert cached_tokens(router, prompt + "four") >= 128
