"""Processes with limits answer questions of megabytes, and are replaced once they have grown or were killed."""

from __future__ import annotations

import os
import resource

import pytest

from atom_core.limited_process import LimitedProcesses, Limits, TooMuchError, UnansweredError

ANSWERER = """
import sys
from atom_core.limited_process.answering import answer_questions
from atom_core.limited_process.limits import Limits

kept = []

def answer(question):
    word, _, rest = question.partition(b" ")
    if word == b"spin":
        while True:
            pass
    if word == b"take":
        bytearray(1 << 30)
    if word == b"keep":
        kept.append(bytearray(64 << 20))
    if word == b"fail":
        raise ValueError
    print("a library prints")
    return rest[::-1]

answer_questions(answer, Limits.from_command_line(sys.argv[1]))
"""


@pytest.fixture
def processes(tmp_path, monkeypatch):
    (tmp_path / "answerer.py").write_text(ANSWERER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    limits = Limits(cpu_seconds=0.3, memory_bytes=256 << 20, kept_bytes=32 << 20, clock_seconds=10.0)
    processes = LimitedProcesses("answerer", limits)
    yield processes
    processes.close()


def test_megabytes_go_there_and_back_by_one_process(processes):
    data = os.urandom(1 << 20) * 9
    assert processes.ask(b"reverse " + data) == data[::-1]
    assert processes.ask(b"reverse ") == b""
    assert processes.num_started == 1


@pytest.mark.parametrize(("question", "reason"), [(b"spin", "processor time"), (b"take", "256 MiB of memory")])
def test_a_question_that_takes_too_much_ends_its_process_and_another_one_answers(processes, question, reason):
    with pytest.raises(TooMuchError, match=reason):
        processes.ask(question)
    assert processes.ask(b"reverse ab") == b"ba"
    assert processes.num_started == 2


def test_a_process_that_has_grown_answers_and_is_replaced(processes):
    assert processes.ask(b"keep ab") == b"ba"
    assert not processes.idle
    assert processes.ask(b"reverse ab") == b"ba"


def test_a_process_that_works_while_all_are_closed_ends_with_its_work(processes):
    processes.close()
    assert processes.ask(b"reverse ab") == b"ba"
    assert not processes.idle


def test_a_process_that_fails_says_nothing_against_the_question(processes):
    with pytest.raises(UnansweredError, match="ended with code 1"):
        processes.ask(b"fail")


def test_a_question_that_a_stopped_process_does_not_even_read_is_waited_for_no_longer(processes):
    processes.ask(b"reverse ab")
    os.kill(processes.idle[0]._process.pid, 19)
    with pytest.raises(UnansweredError, match=r"did not answer within 0\.1 s"):
        processes.ask(bytes(4 << 20), clock_seconds=0.1)
    assert processes.ask(b"reverse ab") == b"ba"


def test_a_process_that_finds_no_descriptors_says_nothing_against_the_question(processes):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(UnansweredError, match=r"could not be started \(Too many open files\): try again later"):
            processes.ask(b"reverse ab")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert processes.ask(b"reverse ab") == b"ba"
