"""Everything that a client can get wrong: an answer in OpenAI's shape, and a server that goes on serving."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}),
    "text": (TEXT, {"prompt": "hello", "max_tokens": 1}),
}
JSON = {"content-type": "application/json"}
CONTEXT = 512


class BadRequest(NamedTuple):
    """A row of the table."""

    method: str
    path: str
    content: bytes
    content_type: str
    status: int
    error: dict[str, str | None]


def read_table():
    """The rows of bad_requests.md, by what is wrong."""
    lines = (Path(__file__).parent / "bad_requests.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    return {name.strip(): bad_request(*cells) for name, *cells in rows}


def bad_request(request, body, status, kind, param, code):
    """What a row stands for."""
    body = re.sub(r"<(\d+) ([^>]+)>", lambda repeated: repeated[2] * int(repeated[1]), body.strip("` "))
    content_type = "application/json"
    if request in GOOD:
        method, (path, fields) = "POST", GOOD[request]
        body = json.dumps(fields | json.loads(body))
    else:
        method, path, *given = request.split()
        content_type = given[0].strip("()") if given else content_type
    content = body.encode().replace(rb"\xff", b"\xff")
    error = {"type": kind, "param": param.strip() or None, "code": code}
    return BadRequest(method, path, content, content_type, int(status), error)


BAD = read_table()


def assert_is_an_openai_error(answer, status, param, code):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code), error
    assert error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_and_the_server_goes_on(server, name):
    row = BAD[name]
    headers = {"content-type": row.content_type}
    answer = httpx.request(row.method, server.url + row.path, content=row.content, headers=headers, timeout=30)
    error = assert_is_an_openai_error(answer, row.status, row.error["param"], row.error["code"])
    assert error["type"] == row.error["type"]
    assert server.post(TEXT, prompt="hello", max_tokens=1).status_code == 200


def test_a_context_error_tells_the_true_counts(server):
    error = server.post(TEXT, prompt=[5] * 600).json()["error"]
    assert "600" in error["message"]
    assert str(CONTEXT) in error["message"]


def test_malformed_json_is_told_with_its_byte_offset(server):
    body = '{"prompt": "é", x}'.encode()
    error = httpx.post(server.url + TEXT, content=body, headers=JSON).json()["error"]
    assert f"at byte {body.index(b'x')}" in error["message"]
    error = httpx.post(server.url + TEXT, content=b'{"top_p": NaN}', headers=JSON).json()["error"]
    assert "NaN" in error["message"]
    assert "at byte" in error["message"]


def test_a_wrong_method_is_told_which_one_works(server):
    answer = httpx.get(server.url + CHAT)
    error = assert_is_an_openai_error(answer, 405, None, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert "POST" in error["message"]


def exchange(server, sent):
    """What comes back for raw bytes, up to the end of the connection."""
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.settimeout(10)
        connection.sendall(sent)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    return answer


@pytest.mark.parametrize("sent", [b"hello\r\n\r\n", b"GET / HTTP/9.9.9\r\n\r\n", b"GET /\xe4 HTTP/1.1\r\n\r\n"])
def test_what_is_not_http_is_told_in_the_same_shape(server, sent):
    head, _, body = exchange(server, sent).partition(b"\r\n\r\n")
    answer = httpx.Response(int(head.split()[1]), content=body)
    assert_is_an_openai_error(answer, 400, None, "invalid_http")


def test_a_body_that_says_it_is_too_large_is_refused_unread(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.settimeout(10)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 999999999\r\n\r\n")
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_turns_out_too_large_is_refused_while_it_comes(server):
    def endless():
        for _ in range(40):
            yield b"x" * 2**20

    answer = httpx.post(server.url + TEXT, content=endless(), headers=JSON, timeout=30)
    assert_is_an_openai_error(answer, 413, None, "request_too_large")
    assert server.post(TEXT, prompt="hello", max_tokens=1).status_code == 200


def test_an_empty_prompt_is_refused_where_the_tokenizer_adds_nothing(server):
    if server.post("/tokenize", prompt="").json()["count"]:
        answer = server.post(TEXT, prompt="", max_tokens=1)
        assert answer.status_code == 200
    else:
        assert_is_an_openai_error(server.post(TEXT, prompt="", max_tokens=1), 400, "prompt", "empty_prompt")


def test_nothing_of_all_this_is_left_running(server):
    server.wait_until_idle()
