"""The life of `atom serve` as a process: signals, a dead engine, addresses, keys."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from child_processes import children_of
from serving_processes import ENDLESS, Stream, engine_pid, exit_code, is_running, post


@pytest.fixture(scope="module")
def open_server(serve_process):
    """Open to all machines, without a key: for tests that look at it and leave it as it is."""
    with serve_process("--host", "0.0.0.0", "--served-model-name", "small") as running:
        yield running


def test_a_server_that_does_not_start_leaves_nothing_open(serve_process):
    server = serve_process("--no-such-flag")
    with pytest.raises(AssertionError, match="unrecognized arguments: --no-such-flag"), server:
        pass
    assert server.process.returncode == 2
    assert server.process.stderr.closed


def test_what_does_not_finish_in_time_is_aborted_with_an_error_event(serve_process):
    with serve_process("--drain-timeout", "0.05") as running:
        stream = Stream(running.url, ENDLESS | {"n": 16, "temperature": 1})
        running.process.send_signal(signal.SIGTERM)
        *_, error, done = stream.finish()
        assert json.loads(error[6:])["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"
        assert exit_code(running) == 0


@pytest.mark.timing
def test_a_second_signal_stops_at_once(serve_process):
    with serve_process() as running:
        Stream(running.url, ENDLESS | {"n": 64, "temperature": 1})
        pid = engine_pid(running)
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        running.process.send_signal(signal.SIGINT)
        assert exit_code(running, 15) == 0
        assert not is_running(pid)


@pytest.mark.timing
def test_a_dead_engine_ends_streams_with_an_error_and_then_the_server(serve_process):
    with serve_process() as running:
        stream = Stream(running.url, ENDLESS | {"n": 16, "temperature": 1})
        os.kill(engine_pid(running), signal.SIGKILL)
        killed = time.monotonic()
        *_, error, done = stream.finish()
        assert json.loads(error[6:])["error"]["code"] == "engine_dead"
        assert done == "data: [DONE]"
        assert httpx.get(running.url + "/health").status_code == 503
        answer = post(running)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
        assert exit_code(running, 5) == 6
        assert time.monotonic() - killed < 5
        running.wait_for_text()
        assert running.lines[-1].startswith("atom serve: the engine's process was ended by SIGKILL")
        assert "Traceback" not in running.text


@pytest.mark.timing
def test_a_killed_rank_is_the_last_line_of_the_server(serve_process):
    with serve_process("-tp", "2") as running:
        assert "2 ranks (tensor parallel) on cpu in float32, 1 threads each" in running.text
        stream = Stream(running.url, ENDLESS | {"n": 16, "temperature": 1})
        ranks = children_of(engine_pid(running), "processes.worker")
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        *_, error, _ = stream.finish()
        assert json.loads(error[6:])["error"]["code"] == "engine_dead"
        assert exit_code(running, 5) == 6
        assert time.monotonic() - killed < 5
        running.wait_for_text()
        assert running.lines[-1].startswith("atom serve: rank 1 was ended by SIGKILL")
        assert "Traceback" not in running.text
        assert not any(map(is_running, ranks))


def test_the_api_process_has_no_torch(open_server):
    assert post(open_server).status_code == 200
    libraries = Path(f"/proc/{open_server.process.pid}/maps").read_text()
    assert "libtorch" not in libraries
    assert "/torch/" not in libraries
    assert "libtorch" in Path(f"/proc/{engine_pid(open_server)}/maps").read_text()


def test_importing_every_module_of_the_server_brings_no_torch():
    code = (
        "import importlib, pkgutil, sys, atom_server\n"
        "for module in pkgutil.walk_packages(atom_server.__path__, 'atom_server.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_port_in_use_is_told_in_one_line_before_anything_is_loaded(tiny_llama):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "atom_server", "serve", "--model", str(tiny_llama), "--server-port", port],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    [line] = done.stderr.strip().splitlines()
    assert f"port {port}" in line
    assert "in use" in line
    assert "--port" in line


def test_with_a_key_everything_but_health_and_ready_asks_for_it(serve_process):
    with serve_process("--host", "0.0.0.0", environment={"ATOM_API_KEY": "right,other"}) as running:
        for path in ("/health", "/ready"):
            assert httpx.get(running.url + path).status_code == 200
        for path in ("/v1/models", "/docs", "/openapi.json", "/version", "/load", "/nothing"):
            answer = httpx.get(running.url + path)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for header in ("Bearer wrong", "right", "Basic right", "Bearer", "Bearer right2"):
            assert httpx.get(running.url + "/version", headers={"authorization": header}).status_code == 401
        for key in ("right", "other"):
            assert httpx.get(running.url + "/version", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert "WARNING: listening on" not in running.text
        assert "right" not in running.text


def test_an_open_address_without_a_key_is_said_loudly(open_server):
    deadline = time.monotonic() + 5
    while "WARNING" not in open_server.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "WARNING: listening on 0.0.0.0 without an API key" in open_server.text
    assert post(open_server).status_code == 200


def test_the_banner_tells_what_runs(open_server):
    for part in ("small (LlamaForCausalLM)", "cpu in float32", "256 blocks of 16 = 4096 tokens", "context 512"):
        assert part in open_server.text
    assert f"{open_server.url}/docs" in open_server.text


def test_a_server_that_was_not_told_to_runs_no_code_of_a_folder_and_says_nothing_of_it(open_server):
    assert [line for line in open_server.lines if line.split()[:1] == ["code"]] == []
    assert post(open_server, max_tokens=4, temperature=0, trust_remote_code=True).status_code == 200


def test_sigterm_during_the_start_ends_it_cleanly(tiny_llama):
    command = [sys.executable, "-m", "atom_server", "serve", "--model", str(tiny_llama), "--server-port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(1.2)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "192.0.2.1", "example.invalid"])
def test_loopback_is_told_from_what_others_can_reach(host):
    from atom_server.connections.listen import is_loopback

    assert is_loopback(host) == (host in ("127.0.0.1", "localhost", "::1"))
