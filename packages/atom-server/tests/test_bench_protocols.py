"""`atom bench serve` speaks the protocol of each backend: a fake server of each answers as its documentation says."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atom_server.bench.backends import BACKENDS
from atom_server.cli.main import main

ANSWER = ("Hel", "lo", " world")


class FakeServer(http.server.ThreadingHTTPServer):
    """Answers every POST to `path` with what `answer` gives for its body: events, or bytes as they are.

    Attributes:
        bodies: what was asked.
    """

    daemon_threads = True

    def __init__(self, path: str, answer: Callable[[dict[str, Any]], list[str] | bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path, self.answer = path, answer
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != self.server.path:
            self.send_error(404)
            return
        self.server.bodies.append(body)
        answer = self.server.answer(body)
        self.send_response(200)
        if isinstance(answer, bytes):
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in answer:
            # Cut within the event, as networks may do.
            for part in (event[:7].encode(), event[7:].encode()):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeServer]]:
    """``fake(path, answer)``: a server that runs until the test ends."""
    running: list[FakeServer] = []

    def start(path: str, answer: Callable[[dict[str, Any]], list[str] | bytes]) -> FakeServer:
        running.append(FakeServer(path, answer))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def run(server: FakeServer, tmp_path, backend: str, *flags: str) -> tuple[int, dict[str, Any]]:
    common = "--num-prompts 4 --random-input-len 6 --random-output-len 3 --ignore-eos --save-detailed"
    place = ["--base-url", server.url, "--result-dir", str(tmp_path), "--result-filename", "r.json"]
    code = main(["bench", "serve", "--backend", backend, *place, *common.split(), *flags])
    return code, json.loads((tmp_path / "r.json").read_text())


def completions(body: dict[str, Any]) -> list[str]:
    events: list[dict[str, Any]] = [{"choices": [{"text": text}]} for text in ANSWER]
    events.append({"choices": [], "usage": {"prompt_tokens": 6, "completion_tokens": 3}})
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]


def chat(body: dict[str, Any]) -> list[str]:
    events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"delta": {"content": text}}]} for text in ANSWER]
    events.append({"choices": [], "usage": {"prompt_tokens": 6, "completion_tokens": 3}})
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]


def tgi(body: dict[str, Any]) -> list[str]:
    events: list[dict[str, Any]] = [{"token": {"id": 1, "text": text}, "generated_text": None} for text in ANSWER]
    events[-1] |= {
        "generated_text": "".join(ANSWER),
        "details": {"generated_tokens": 3, "finish_reason": "length", "input_length": 6},
    }
    return [f"data:{json.dumps(event)}\n\n" for event in events]


def tensorrt_llm(body: dict[str, Any]) -> list[str]:
    return [f"data: {json.dumps({'model_name': 'ensemble', 'text_output': text})}\n\n" for text in ANSWER]


def mii(body: dict[str, Any]) -> bytes:
    usage = {"prompt_tokens": 6, "completion_tokens": 3}
    return json.dumps({"choices": [{"text": "".join(ANSWER)}], "usage": usage}).encode()


SERVERS = {
    "tgi": ("/generate_stream", tgi),
    "tensorrt-llm": ("/v2/models/ensemble/generate_stream", tensorrt_llm),
    "deepspeed-mii": ("/v1/completions", mii),
    "openai-chat": ("/v1/chat/completions", chat),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gets_text_and_counts_of_its_server(fake, tmp_path, backend):
    server = fake(*SERVERS.get(backend, ("/v1/completions", completions)))
    code, result = run(server, tmp_path, backend, "--model", "m")
    assert (code, result["completed"], result["failed"]) == (0, 4, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (24, 12)
    assert set(result["generated_texts"]) == {"Hello world"}
    assert [len(gaps) for gaps in result["itls"]] == [0 if backend == "deepspeed-mii" else 2] * 4
    assert len(server.bodies) == 5  # one goes alone first


def test_each_protocol_has_its_own_words_for_length_and_end(fake, tmp_path):
    asked = {}
    for backend in ("tgi", "tensorrt-llm", "deepspeed-mii", "vllm"):
        server = fake(*SERVERS.get(backend, ("/v1/completions", completions)))
        run(server, tmp_path, backend, "--model", "m")
        asked[backend] = server.bodies[-1]
    parameters = asked["tgi"]["parameters"]
    assert (parameters["max_new_tokens"], parameters["ignore_eos_token"]) == (3, True)
    assert len(asked["tgi"]["inputs"].split()) == 6
    assert (asked["tensorrt-llm"]["max_tokens"], asked["tensorrt-llm"]["min_length"]) == (3, 3)
    assert asked["tensorrt-llm"]["accumulate_tokens"] is False
    assert (asked["deepspeed-mii"]["temperature"], asked["deepspeed-mii"].get("stream")) == (0.01, None)
    assert (asked["vllm"]["stream_options"], asked["vllm"]["ignore_eos"]) == ({"include_usage": True}, True)


def test_servers_of_other_protocols_need_no_name_of_a_model(fake, tmp_path):
    code, result = run(fake(*SERVERS["tgi"]), tmp_path, "tgi")
    assert (code, result["model_id"]) == (0, "tgi")


def test_another_endpoint_may_be_named(fake, tmp_path):
    server = fake("/v2/models/mine/generate_stream", tensorrt_llm)
    code, _ = run(server, tmp_path, "tensorrt-llm", "--endpoint", "/v2/models/mine/generate_stream")
    assert code == 0


@pytest.mark.parametrize(
    ("backend", "answer", "reason"),
    [
        ("tgi", lambda body: ['data:{"error": "overloaded"}\n\n'], "overloaded"),
        ("tensorrt-llm", lambda body: ['data: {"error": "bad"}\n\n'], "bad"),
        ("vllm", lambda body: ['data: {"error": {"message": "full"}}\n\n'], "full"),
        ("vllm", lambda body: ["data: {\n\n"], "DecodeError"),
        ("tgi", lambda body: ['data: {"x": 1}\n\n'], "KeyError: 'token'"),
        ("deepspeed-mii", lambda body: b"{", "DecodeError"),
        ("vllm", lambda body: b'{"detail": "ok"}', "neither text nor tokens; is /v1/completions the endpoint"),
    ],
)
def test_an_answer_that_is_none_is_told_before_the_run(fake, capsys, backend, answer, reason):
    server = fake(SERVERS.get(backend, ("/v1/completions", None))[0], answer)
    assert main(["bench", "serve", "--backend", backend, "--base-url", server.url, "--model", "m"]) == 1
    assert reason in capsys.readouterr().err
