"""The log of requests as JSON lines: what stands in it, and what happens when it cannot be written."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from atom_core.config import ConfigError
from atom_server import ServerOptions, create_app
from atom_server.observe.request_file import RequestFile
from atom_server.request_log import RequestRecord
from http_edge import serving


@pytest.fixture
def front(server, tmp_path):
    """``(url, path)`` of another front of the shared engine, which logs to `path`."""
    path = tmp_path / "requests.jsonl"
    app = create_app(server.engine, ServerOptions(request_log=str(path), api_key="alice", admin_key="root"))
    with serving(app, api_key="alice", admin_key="root") as port:
        yield f"http://127.0.0.1:{port}", path
    app.state.server.close()


def ask(url, path="/v1/completions", **fields):
    return httpx.post(url + path, json=fields, headers={"authorization": "Bearer alice"}, timeout=30)


def lines(path: Path, count: int):
    """So many lines: a line is written once its answer has been sent."""
    deadline = time.monotonic() + 30
    while len(found := path.read_text().splitlines() if path.exists() else []) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(found) == count
    return [json.loads(line) for line in found]


def test_a_request_leaves_a_line_with_numbers_and_without_text(front):
    url, path = front
    answer = ask(url, prompt="a secret", max_tokens=3, ignore_eos=True, request_id="mine").json()
    [line] = lines(path, 1)
    assert "secret" not in path.read_text()
    assert (line["method"], line["path"], line["status"], line["answer_id"]) == (
        "POST",
        "/v1/completions",
        200,
        "cmpl-mine",
    )
    assert line["key"].startswith("key-")
    assert (line["prompt_tokens"], line["output_tokens"]) == (answer["usage"]["prompt_tokens"], 3)
    assert line["finish_reasons"] == ["length"]
    assert 0 < line["queued_s"] < line["ttft_s"] < line["seconds"]


def test_requests_that_fail_are_there_and_probes_are_not(front):
    url, path = front
    assert httpx.get(url + "/health").status_code == 200
    assert httpx.get(url + "/version").status_code == 401
    assert ask(url, prompt="x", temperature=-1).status_code == 400
    found = [(line["path"], line["status"], line["key"] != "") for line in lines(path, 2)]
    assert found == [("/version", 401, False), ("/v1/completions", 400, True)]
    assert all("prompt_tokens" not in line for line in lines(path, 2))


def test_whatever_a_client_sends_is_one_line(front):
    url, path = front
    httpx.get(url + '/no%0A"}{%E2%80%A8' + "x" * 1000, headers={"authorization": "Bearer alice"})
    [line] = lines(path, 1)
    assert line["status"] == 404
    assert len(line["path"]) <= 800


def test_a_file_that_is_moved_away_is_begun_anew(front):
    url, path = front
    ask(url, "/tokenize", prompt="x")
    lines(path, 1)
    path.rename(path.with_suffix(".old"))
    ask(url, "/detokenize", tokens=[3])
    assert [line["path"] for line in lines(path, 1)] == ["/detokenize"]


def test_a_full_disk_loses_lines_and_says_so_once(caplog):
    with RequestFile("/dev/full") as file:
        for _ in range(100):
            file.write(RequestRecord("id", "GET", "/version", status=200))
        [line] = [record.getMessage() for record in caplog.records]
        assert "requests are missing from /dev/full (--request-log): " in line
        assert "No space left on device" in line


def test_a_folder_that_goes_away_loses_lines_and_says_so(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    with RequestFile(str(folder / "requests")) as file:
        file.write(RequestRecord("id", "GET", "/version", status=200))
        (folder / "requests").unlink()
        folder.rmdir()
        file.write(RequestRecord("id", "GET", "/version", status=200))
        assert "No such file or directory" in caplog.text
        folder.mkdir()
        file.write(RequestRecord("id", "GET", "/version", status=200))
        lines(folder / "requests", 1)


def test_a_file_that_cannot_be_written_is_refused():
    with pytest.raises(ConfigError, match="request_log '/no/such/folder/file' cannot be written"):
        RequestFile("/no/such/folder/file")


def test_a_dash_is_standard_output(capsys):
    with RequestFile("-") as file:
        file.write(RequestRecord("id", "GET", "/version", status=200))
    assert json.loads(capsys.readouterr().out)["request_id"] == "id"
