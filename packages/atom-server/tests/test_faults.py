"""What is done to the processes of `atom serve`, and to the machine under them: clients are told, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from child_processes import children_of
from serving_processes import ENDLESS, Stream, engine_pid, exit_code, is_running, post

SEVERAL = ENDLESS | {"n": 8, "temperature": 1}


@pytest.fixture
def injected(tmp_path):
    """``injected(code)``: variables that make every Python process run `code` first."""

    def inject(code):
        (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(code))
        return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    return inject


@pytest.fixture
def short_grace(injected):
    """Variables with which a server waits a moment, and not seconds, for an engine that answers nothing."""
    return injected("""
        import sys
        if "serve" in sys.orig_argv:  # it is imported by no other process: that would take longer than it saves
            from atom_core.engine.process import supervisor
            from atom_server import lifecycle
            supervisor.STOP_GRACE_SECONDS = 0.2
            lifecycle._GRACE_S = 0.5
    """)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def seconds_until(condition, at_most=10.0):
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < at_most
        time.sleep(0.02)
    return time.monotonic() - started


def health(running):
    return httpx.get(running.url + "/health", timeout=10).status_code


@contextlib.contextmanager
def stopped(pid):
    """An engine that answers nothing. It would stay for ever where the server did not end it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def half_a_request(running):
    """A connection on which the server waits for the rest of a body."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        half.sendall(b"Content-Length: 99\r\n\r\n{")
        seconds_until(lambda: httpx.get(running.url + "/debug/requests").json()["not_generating"])
        yield half


def ends_with_an_error_event(stream):
    *_, error, done = stream.finish()
    assert done == "data: [DONE]"
    return json.loads(error[6:])["error"]["code"]


@pytest.mark.timing
def test_a_stopped_engine_is_ended_and_everyone_is_told(serve_process):
    with serve_process("--step-timeout", "1") as running:
        stream = Stream(running.url, SEVERAL)
        pid = engine_pid(running)
        os.kill(pid, signal.SIGSTOP)
        assert seconds_until(lambda: health(running) == 503) < 3
        assert ends_with_an_error_event(stream) == "engine_dead"
        assert post(running).json()["error"]["code"] == "engine_dead"
        assert exit_code(running, 5) == 6
        assert not is_running(pid)
        running.wait_for_text()
        assert running.lines[-1].startswith("atom serve: the engine hangs: its process has said nothing for")
        assert "Traceback" not in running.text


def test_a_drain_tells_every_client_even_one_whose_body_never_comes_and_where_the_engine_is_stopped(
    serve_process, short_grace
):
    with serve_process("--drain-timeout", "0.2", "--step-timeout", "60", environment=short_grace) as running:
        streams = [Stream(running.url, SEVERAL) for _ in range(3)]
        with half_a_request(running) as half, stopped(engine_pid(running)):
            running.process.send_signal(signal.SIGTERM)
            assert [ends_with_an_error_event(stream) for stream in streams] == ["shutting_down"] * 3
            answer = b"".join(iter(lambda: half.recv(4096), b""))
            assert b" 503 " in answer.splitlines()[0]
            assert exit_code(running) == 0
        running.wait_for_text()
        assert "Traceback" not in running.text


def test_a_second_signal_tells_every_client_even_where_the_engine_is_stopped(serve_process, short_grace):
    with serve_process("--step-timeout", "60", environment=short_grace) as running:
        streams = [Stream(running.url, SEVERAL) for _ in range(3)]
        with stopped(engine_pid(running)):
            running.process.send_signal(signal.SIGTERM)
            seconds_until(lambda: httpx.get(running.url + "/ready").status_code == 503)
            running.process.send_signal(signal.SIGTERM)
            assert [ends_with_an_error_event(stream) for stream in streams] == ["shutting_down"] * 3
            assert exit_code(running) == 0
        running.wait_for_text()
        assert "Traceback" not in running.text


@pytest.mark.timing
def test_a_step_that_never_ends_ends_the_engine(serve_process, injected):
    environment = injected("""
        import time
        from atom_core.engine.engine_core import EngineCore
        step, count = EngineCore.step, 0
        def hang(core):
            global count
            count += 1
            if count == 50: time.sleep(1000)
            return step(core)
        EngineCore.step = hang
    """)
    with serve_process("--step-timeout", "1", environment=environment) as running:
        stream = Stream(running.url, ENDLESS)
        assert ends_with_an_error_event(stream) == "engine_dead"
        assert exit_code(running, 5) == 6
        running.wait_for_text()
        assert running.lines[-1].startswith("atom serve: the engine hangs: no step has ended for")


@pytest.mark.timing
def test_an_engine_is_started_anew_as_often_as_was_asked_for(serve_process):
    with serve_process("--restart-engine", "1") as running:
        before = post(running, prompt="once", max_tokens=8, temperature=0).json()["choices"][0]["text"]
        stream = Stream(running.url, SEVERAL)
        first = engine_pid(running)
        os.kill(first, signal.SIGKILL)
        assert ends_with_an_error_event(stream) == "engine_dead"
        assert seconds_until(lambda: health(running) == 503) < 1
        refused = post(running)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        seconds_until(lambda: health(running) == 200, at_most=30)
        assert engine_pid(running) != first
        again = post(running, prompt="once", max_tokens=8, temperature=0).json()["choices"][0]["text"]
        assert again == before
        os.kill(engine_pid(running), signal.SIGKILL)
        assert exit_code(running, 5) == 6


@pytest.mark.timing
def test_a_stopped_server_goes_on_where_it_was(serve_process):
    with serve_process("--step-timeout", "1") as running:
        whole = Stream(running.url)
        whole.finish()
        stream = Stream(running.url)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        running.process.send_signal(signal.SIGCONT)
        assert stream.finish()[-1] == "data: [DONE]"
        assert stream.text == whole.text
        assert health(running) == 200


@pytest.mark.timing
def test_a_killed_server_takes_its_engine_along(serve_process):
    with serve_process() as running:
        pid = engine_pid(running)
        folder = _socket_folder(pid)
        running.process.kill()
        assert seconds_until(lambda: not is_running(pid)) < 5
        assert not folder.exists()


def test_sigterm_lets_what_runs_finish_and_refuses_the_rest(serve_process):
    asked = ENDLESS | {"max_tokens": 100}
    with serve_process() as running:
        whole = Stream(running.url, asked)
        whole.finish()
        streams = [Stream(running.url, asked) for _ in range(12)]
        # The engine stands still while this looks: else all may be over before.
        os.kill(engine_pid(running), signal.SIGSTOP)
        running.process.send_signal(signal.SIGTERM)
        seconds_until(lambda: httpx.get(running.url + "/ready").status_code == 503)
        refused = post(running)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "shutting_down"
        assert health(running) == 200
        os.kill(engine_pid(running), signal.SIGCONT)
        assert all(stream.finish()[-1] == "data: [DONE]" for stream in streams)
        assert not any("error" in event for stream in streams for event in stream.events)
        assert {stream.text for stream in streams} == {whole.text}
        assert exit_code(running) == 0
        running.wait_for_text()
        assert "Traceback" not in running.text


def test_a_checkpoint_that_changes_changes_no_answer_also_without_caches(serve_process, tiny_llama, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_llama.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    nowhere = "/proc/no/such/folder"  # the second cache is for compiled kernels
    unwritable = {"ATOM_CACHE_DIR": nowhere, "XDG_CACHE_HOME": nowhere}
    with serve_process("--model", str(model), environment=unwritable) as running:
        asked = {"prompt": "once", "max_tokens": 16, "temperature": 0}
        before = post(running, **asked).json()["choices"][0]["text"]
        for content in (b"\0" * 100_000, b""):
            for file in model.iterdir():
                file.write_bytes(content)
            assert post(running, **asked).json()["choices"][0]["text"] == before
            assert health(running) == 200


def test_with_a_full_disk_for_its_log_a_server_serves_and_drains_at_the_end_of_a_terminal(tiny_llama, free_port):
    command = [sys.executable, "-m", "atom_server", "serve", "--model", str(tiny_llama), "--port", str(free_port)]
    url = f"http://127.0.0.1:{free_port}"
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([*command, "--dtype", "float32", "--num-kv-blocks", "64"], stderr=full)
    try:
        seconds_until(lambda: _answers(url), at_most=60)
        answer = httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=30)
        assert answer.status_code == 200
        stream = Stream(url)
        [engine] = children_of(process.pid, "core_process")
        os.kill(engine, signal.SIGHUP)  # a terminal tells the whole group
        process.send_signal(signal.SIGHUP)
        assert stream.finish()[-1] == "data: [DONE]"
        assert process.wait(20) == 0
    finally:
        process.kill()


def test_without_room_for_its_sockets_a_server_says_so_in_one_line(tiny_llama, injected):
    environment = injected("""
        import errno, tempfile
        def full(*_, **__): raise OSError(errno.ENOSPC, "No space left on device", "/tmp")
        tempfile.mkdtemp = full
    """)
    command = [sys.executable, "-m", "atom_server", "serve", "--model", str(tiny_llama), "--port", "0"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 5
    assert done.stderr.strip().splitlines()[-1].startswith("atom serve: /tmp: No space left on device: free some space")
    assert "Traceback" not in done.stderr


def _answers(url):
    try:
        return httpx.get(url + "/health").status_code == 200
    except httpx.TransportError:
        return False


def _socket_folder(pid):
    links = (os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    [path] = {Path(row[7]).parent for row in rows if len(row) == 8 and row[6] in inodes}
    return path
