"""Who may use the server: keys that are none, web pages in somebody's browser, names that are not the server's."""

from __future__ import annotations

import argparse
import subprocess
import sys

import httpx
import pytest

from atom_core.config import ConfigError
from atom_server import ServerOptions, create_app
from atom_server.access.web_pages import host_name
from http_edge import Client, serving

TEXT = "/v1/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=30) as client:
        yield client


@pytest.fixture
def ask(server, http):
    """``ask(method, path, options={}, ...)``: the answer of another front of the shared engine."""

    def send(method, path, *, options=None, headers=None, content=None):
        options = options or {}
        with serving(create_app(server.engine, ServerOptions(**options)), **options) as port:
            url = f"http://127.0.0.1:{port}{path}"
            return http.request(method, url, headers=headers, content=content)

    return send


def error_of(answer):
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return error


# Keys.


@pytest.mark.parametrize("key", ["", " ", ",", " , ,", "schlüssel", "a\tb", "good,b\x00d"])
def test_a_key_that_is_none_is_refused_and_not_taken_for_no_key(key):
    with pytest.raises(ConfigError, match="api_key"):
        ServerOptions(api_key=key)


def parsed(*flags):
    return ServerOptions.from_cli_args(ServerOptions.add_cli_args(argparse.ArgumentParser()).parse_args(flags))


def test_an_empty_flag_is_not_overruled_by_the_environment(monkeypatch):
    monkeypatch.setenv("ATOM_API_KEY", "from-the-environment")
    assert parsed().api_keys == ("from-the-environment",)
    assert parsed("--api-key", "own").api_keys == ("own",)
    with pytest.raises(SystemExit):
        parsed("--api-key", "")
    with pytest.raises(ConfigError, match="--api-key"):
        parsed("--api-key", " ")


def test_a_blank_variable_is_refused_and_an_empty_one_is_unset(monkeypatch):
    monkeypatch.setenv("ATOM_API_KEY", " ")
    with pytest.raises(ConfigError, match="ATOM_API_KEY"):
        parsed()
    monkeypatch.setenv("ATOM_API_KEY", "")
    assert parsed().api_keys == ()


def test_the_command_line_says_it_in_one_line_before_anything_is_loaded():
    command = [sys.executable, "-m", "atom_server", "serve", "--model", "nothing", "--api-key", " , "]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert "holds no key" in line


# Content types.


@pytest.mark.parametrize("path", [TEXT, "/v1/messages", "/tokenize", "/start_profile", "/v1/responses/resp_x/cancel"])
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_that_is_not_said_to_be_json_is_refused(server, http, path, kind):
    headers = {"content-type": kind} if kind else {}
    answer = http.post(server.url + path, content=b'{"prompt": "hello"}', headers=headers)
    assert answer.status_code == 415
    assert "Content-Type: application/json" in error_of(answer)["message"]


def test_a_body_in_chunks_needs_its_type_too(server, http):
    answer = http.post(server.url + TEXT, content=iter([b'{"prompt": "hello", "max_tokens": 1}']))
    assert answer.status_code == 415


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_json_is_taken_however_its_type_is_written(server, http, kind):
    body = b'{"prompt": "hello", "max_tokens": 1}'
    assert http.post(server.url + TEXT, content=body, headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}, JSON])
def test_a_post_without_a_body_needs_no_type(server, http, headers):
    answer = http.post(server.url + "/start_profile", headers=headers)
    assert (answer.status_code, error_of(answer)["code"]) == (409, "profiler_not_ready")
    assert http.post(server.url + TEXT, headers=headers).status_code == 400


# Web pages of others.


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://evil.example"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_what_a_page_of_another_site_sent_is_refused(server, http, method, headers):
    answer = http.request(method, server.url + "/v1/responses/resp_x", headers=headers | JSON)
    assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_not_allowed")


def test_pages_of_the_server_itself_and_programs_are_welcome(server, http):
    own = server.url.replace("127.0.0.1", "LOCALHOST")
    host = own.removeprefix("http://")
    for headers in (
        {},
        {"origin": own.lower(), "host": host},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ):
        answer = http.post(server.url + TEXT, json={"prompt": "hello", "max_tokens": 1}, headers=headers)
        assert answer.status_code == 200


# Host names.

OWN = ["localhost", "localhost:9", "LocalHost:8000", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:8000"]
OTHERS = [
    "evil.example",
    "evil.example:8000",
    "192.168.0.1",
    "localhost.evil.example",
    "evil@localhost",
    "localhost/x",
    "127.0.0.1%.evil.example",
    "127.0.0.1%25.evil.example:8000",
    "[::1%evil.example]",
    "[::2]",
    "",
]


@pytest.mark.parametrize("host", OWN)
def test_a_server_of_this_machine_takes_its_names(server, http, host):
    assert http.get(server.url + "/version", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", OTHERS)
def test_a_server_of_this_machine_takes_no_other_name(server, http, host):
    answer = http.get(server.url + "/version", headers={"host": host})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "host_not_allowed")
    assert "--allowed-hosts" in error_of(answer)["message"]


@pytest.mark.parametrize(
    "hosts", [b"", b"host: evil.example\r\nhost: localhost\r\n", b"host: localhost\r\nhost: x\r\n"]
)
def test_there_is_exactly_one_host(server, hosts):
    with Client(int(server.url.rpartition(":")[2])) as client:
        client.send(b"GET /version HTTP/1.1\r\n" + hosts + b"\r\n")
        assert client.answer().status_code == 403


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_name(server, http, path):
    assert http.get(server.url + path, headers={"host": "10.0.0.7:8000"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "host", "status"),
    [
        ({"host": "0.0.0.0"}, "anything.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "llm.example"}, "anything.example", 403),
        ({"host": "0.0.0.0", "allowed_hosts": "Llm.example"}, "LLM.example:443", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "llm.example"}, "localhost", 200),
        ({"allowed_hosts": "a.example, b.example"}, "b.example", 200),
        ({"allowed_hosts": "a.example"}, "b.example", 403),
        ({"allowed_hosts": "*"}, "b.example", 200),
    ],
)
def test_the_flag_says_which_names_are_taken(ask, options, host, status):
    assert ask("GET", "/version", options=options, headers={"host": host}).status_code == status


def test_the_messages_api_gets_its_own_shape(server, http):
    answer = server.post("/v1/messages")
    assert answer.status_code == 400
    answer = http.post(server.url + "/v1/messages", json={}, headers={"host": "evil.example"})
    assert answer.json()["type"] == "error"
    assert error_of(answer)["type"] == "permission_error"


def test_an_ipv6_name_is_read_without_its_brackets():
    assert host_name("[2001:DB8::1]:80") == "2001:db8::1"
    assert host_name("a:b") is None
