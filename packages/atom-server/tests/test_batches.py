"""Files of requests: each request is answered once, whatever ends the process; other lines are refused by number."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from atom_server.batches.journal import Answer, Journal, Refusal, entry_of
from atom_server.batches.lines import BadLine, BatchError, BatchFile, BatchLine
from atom_server.batches.run import answer_all
from atom_server.cli.main import main

DEFAULTS = {"max_tokens": 5, "temperature": 0}
ENGINE = ("--dtype", "float32", "--num-threads", "1", "--num-kv-blocks", "64", "--max-model-len", "64")


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "requests.jsonl"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    return write


def requests_of(path, defaults=DEFAULTS, **settings):
    return BatchFile(path=path, defaults=defaults, **settings)


def line_of(custom_id):
    return BatchLine(custom_id, "/v1/completions", {})


def add(journal, custom_id, status=200):
    line = line_of(custom_id)
    journal.add(line, entry_of(line, Answer(status, "r", b"{}")), status)


def test_a_body_alone_goes_to_the_route_of_its_prompt_and_takes_what_it_leaves_out(written):
    path = written({"prompt": "a", "max_tokens": 7}, "", {"messages": [], "custom_id": "m"})
    assert list(requests_of(path)) == [
        BatchLine("line-1", "/v1/completions", {"prompt": "a", "max_tokens": 7, "temperature": 0}),
        BatchLine("m", "/v1/chat/completions", {"messages": [], "max_tokens": 5, "temperature": 0}),
    ]


def test_a_request_of_openais_format_is_sent_as_it_stands(written):
    body = {"input": "x"}
    path = written({"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": body})
    assert list(requests_of(path)) == [BatchLine("e", "/v1/embeddings", body)]


def test_with_chat_a_prompt_is_what_a_user_says_unless_it_is_of_ids(written):
    first, second = requests_of(written({"prompt": "hi"}, {"prompt": [1, 2]}), {}, is_chat=True)
    assert first == BatchLine("line-1", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert second == BatchLine("line-2", "/v1/completions", {"prompt": [1, 2]})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: the line is not valid JSON: expecting property name"),
        ("[1]", "line 2: the line must be a JSON object, not an array"),
        ("[" * 100_000, "line 2: "),
        ({"promt": "a"}, "line 2: it has neither prompt, messages nor body"),
        ({"prompt": "a", "custom_id": 3}, "line 2: custom_id is 3; it must be text"),
        ({"prompt": "a", "custom_id": "line-1"}, "line 2: its custom_id 'line-1' is that of line 1"),
        ({"prompt": "a", "stream": True}, "line 2: stream is true"),
        ({"body": [], "url": "/v1/completions"}, "line 2: its body is no object of JSON"),
        (
            {"body": {}, "url": "/health"},
            "line 2: it asks for 'POST' '/health'; allowed is 'POST' with one of /v1/completions",
        ),
        ({"body": {}, "url": "/v1/completions", "method": "GET"}, "line 2: it asks for 'GET' '/v1/completions'"),
    ],
)
def test_what_is_no_request_is_refused_by_its_line(line, message, written):
    with pytest.raises(BatchError) as caught:
        requests_of(written({"prompt": "first"}, line), {}).check()
    assert message in str(caught.value)


def test_a_file_without_requests_is_refused(written):
    with pytest.raises(BatchError, match="has no requests"):
        requests_of(written("", " "), {}).check()


def test_a_line_that_was_begun_is_cut_off_and_whole_ones_are_kept(tmp_path):
    path = tmp_path / "answers"
    with Journal(path) as journal:
        add(journal, "a")
        add(journal, "b", 400)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    with Journal(path) as journal:
        assert journal.answered == {"a": 200, "b": 400}
        assert journal.num_refused == 1
    assert path.read_bytes() == whole


def test_lines_without_names_are_known_again_by_their_numbers(tmp_path):
    path = tmp_path / "answers"
    with Journal(path, "number") as journal:
        for number in (3, 7):
            line = BadLine(None, number, "it is wrong")
            journal.add(line, entry_of(line, Refusal("invalid_line", line.problem)), 0)
    with Journal(path, "number") as journal:
        assert journal.answered == {3: 0, 7: 0}


def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes"
    path.write_text('{"custom_id": "a"}\n')
    with pytest.raises(BatchError, match="line 1, is no answer of a batch"):
        Journal(path)
    assert path.read_text() == '{"custom_id": "a"}\n'


def test_two_processes_do_not_write_to_one_file(tmp_path):
    with Journal(tmp_path / "answers"), pytest.raises(BatchError, match="another process is writing"):
        Journal(tmp_path / "answers")
    Journal(tmp_path / "answers").__exit__(None, None, None)


def test_a_line_that_finds_the_disk_full_is_not_there_in_part(tmp_path, monkeypatch):
    path = tmp_path / "answers"
    with Journal(path) as journal:
        add(journal, "a")
        whole, write = path.read_bytes(), os.write

        def full(file, data):
            if len(data) < 40:
                raise OSError(28, "No space left on device")
            return write(file, data[:30])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            add(journal, "b")
        assert path.read_bytes() == whole
        assert "b" not in journal.answered


def ran(lines, ask, path, at_once=2):
    kept = []

    def keep(line, answer):
        journal.add(line, entry_of(line, answer), answer.status)
        kept.append(line)

    with Journal(path) as journal:
        asyncio.run(answer_all(iter(lines), ask, keep, at_once=at_once))
    return len(kept)


def test_what_is_busy_is_asked_again(tmp_path):
    asked = []

    async def ask(line):
        asked.append(line.custom_id)
        return Answer(503 if asked.count(line.custom_id) == 1 and line.custom_id == "1" else 200, "r", b"{}")

    lines = [line_of(str(number)) for number in range(4)]
    assert ran(lines, ask, tmp_path / "answers") == 4
    assert sorted(asked) == ["0", "1", "1", "2", "3"]


def test_no_more_are_asked_at_once_than_is_said(tmp_path):
    running, most = 0, 0

    async def ask(line):
        nonlocal running, most
        running += 1
        most = max(most, running)
        while most < 3:
            await asyncio.sleep(0)
        running -= 1
        return Answer(200, "r", b"{}")

    ran([line_of(str(number)) for number in range(20)], ask, tmp_path / "answers", at_once=3)
    assert most == 3


def test_what_ends_a_batch_is_raised_and_answers_that_had_come_are_kept(tmp_path):
    async def ask(line):
        if line.custom_id == "2":
            raise ConnectionError("the engine is gone")
        return Answer(200, "r", b"{}")

    lines = [line_of(str(number)) for number in range(4)]
    with pytest.raises(ConnectionError, match="the engine is gone"):
        ran(lines, ask, tmp_path / "answers", at_once=1)
    with Journal(tmp_path / "answers") as journal:
        assert set(journal.answered) == {"0", "1"}


def test_files_are_answered_through_the_routes_and_a_refusal_is_told(written, tmp_path, tiny_llama, capsys):
    path, answers = written({"prompt": "hello"}, {"prompt": "x", "n": -1}), tmp_path / "answers"
    arguments = ["generate", "--input", path, "--output", answers, "--model", tiny_llama, "--max-tokens", "4", *ENGINE]
    for _ in range(2):  # nothing is left for the second one, which starts no engine
        assert main([str(argument) for argument in arguments]) == 1
        assert "1 of 2 requests were refused" in capsys.readouterr().err
    lines = {line["custom_id"]: line["response"] for line in map(json.loads, answers.read_bytes().splitlines())}
    assert lines["line-1"]["body"]["usage"]["completion_tokens"] == 4
    assert (lines["line-2"]["status_code"], len(lines)) == (400, 2)


@pytest.mark.parametrize(
    "arguments", [[], ["hello", "--input", "a", "--output", "b"], ["--input", "a"], ["hello", "--output", "b"]]
)
def test_a_prompt_or_both_files_are_given(arguments, capsys):
    assert main(["generate", *arguments]) != 0
    assert capsys.readouterr().err.strip().endswith("give a prompt, or --input and --output")


@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_batch_that_is_killed_half_way_goes_on_without_a_line_lost_or_repeated(number, written, tmp_path, tiny_llama):
    path, answers = written(*({"prompt": f"number {index}"} for index in range(number))), tmp_path / "answers"
    files = ["--input", path, "--output", answers, "--model", tiny_llama, "--max-tokens", "30"]
    command = [sys.executable, "-m", "atom_server", "generate", *files, *ENGINE, "--max-num-seqs", "4"]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)
    while process.poll() is None and (not answers.exists() or answers.read_bytes().count(b"\n") < number // 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = answers.read_bytes().count(b"\n")
    assert (
        subprocess.run([str(word) for word in command], capture_output=True, timeout=300, check=False).returncode == 0
    )
    names = [json.loads(line)["custom_id"] for line in answers.read_bytes().splitlines()]
    assert sorted(names) == sorted(f"line-{index}" for index in range(1, number + 1))
    assert number // 2 <= before < number
