"""What clients send is neither remembered without end nor written to the log as it is."""

from __future__ import annotations

import gc
import io
import logging
import re
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from urllib.parse import quote

import httpx
import pytest

from atom_core.log_lines import LineFormatter

MARK = re.compile(rb"zq\d+qz")
HOSTILE = "\nINFO forged\r\n\x1b[2J\u2028\u202e"


def requests_with(text: str, hostile: str = "") -> Iterator[httpx.Request]:
    """Requests with `text` in every field that a client may choose; where a field takes it, with `hostile` too.

    The first one has the ids, the salt, the metadata and the headers by themselves.
    """
    odd = text + hostile
    message = {"role": odd, "content": odd, "name": odd, odd: odd}
    call = {"id": odd, "type": "function", "function": {"name": odd, "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": text, "description": odd, "parameters": {odd: odd}}}
    schema = {"type": "object", "properties": {text: {"type": "string", odd: odd}}}
    fields = {"max_tokens": 1, "user": odd, "request_id": text, "cache_salt": text, "metadata": {text: odd}, odd: odd}
    chat = {**fields, "messages": [message], "stop": [odd], "bad_words": [odd], "chat_template_kwargs": {odd: odd}}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    for path, body in [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {"messages": history, "max_tokens": 1, "tools": [tool], "tool_choice": "required"}),
        ("/v1/chat/completions", {"messages": "x", "model": odd}),
        ("/v1/completions", {**fields, "prompt": odd, "structured_outputs": {"json": schema}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": text}}),
        ("/v1/responses", {"input": odd, "store": False, "metadata": {text: odd}, "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": odd}], "max_tokens": 1, "metadata": {odd: odd}}),
        ("/v1/embeddings", {"input": odd, "user": odd}),
        ("/v1/rerank", {"query": odd, "documents": [odd]}),
        ("/tokenize", {"prompt": odd}),
    ]:
        headers = {"x-request-id": text, "x-" + text: text, "user-agent": text}
        yield httpx.Request("POST", f"http://server{path}?{quote(odd)}={quote(odd)}", json=body, headers=headers)
    yield httpx.Request("GET", f"http://server/{quote(odd)}")
    yield httpx.Request("GET", f"http://server/v1/models/{quote(odd)}")
    yield httpx.Request("GET", f"http://server/v1/responses/{quote(odd)}")
    yield httpx.Request("POST", "http://server/v1/completions", content=odd, headers={"content-type": text})


def send_all(server, texts: Iterator[str], hostile: str = "", most: int | None = None) -> list[int]:
    """Statuses of the answers to the first `most` requests with each text."""
    address = httpx.URL(server.url)

    def send(text: str) -> list[int]:
        statuses = []
        for request in islice(requests_with(text, hostile), most):
            request.url = request.url.copy_with(host=address.host, port=address.port)
            request.headers["host"] = address.netloc.decode()
            statuses.append(client.send(request).status_code)
        return statuses

    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(4) as threads:
        return [status for statuses in threads.map(send, texts) for status in statuses]


def marks_in_memory() -> set[bytes]:
    """Every mark that a container of this process holds; the server's app runs in it."""
    gc.unfreeze()  # what was frozen is not among the objects
    gc.collect()
    found: set[bytes] = set()
    for holder in gc.get_objects():
        if issubclass(type(holder), dict):
            # What the dictionary holds, not what a class that inherits from dict loads when it is asked.
            values = [*dict.keys(holder), *dict.values(holder)]
        elif issubclass(type(holder), list | tuple | set | frozenset | deque):
            values = list(holder)
        else:
            continue
        for value in values:
            # Not isinstance: it asks the object, and some of torch's warn when they are asked.
            if issubclass(type(value), str):
                found.update(MARK.findall(value.encode(errors="replace")))
            elif issubclass(type(value), bytes):
                found.update(MARK.findall(value))
    gc.freeze()  # as it was: other tests need not go through it
    return found


def test_nothing_that_a_client_sends_is_remembered_without_end(server, monkeypatch):
    """Grammars that were compiled are remembered, up to a number; nothing else: 13 texts would show more."""
    monkeypatch.setattr(server.engine._inputs._grammars, "_max_grammars", 8)
    statuses = send_all(server, (f"zq{index}qz" for index in range(40)))
    assert {200, 404} <= set(statuses) <= {200, 400, 404, 415}
    server.wait_until_idle(60)
    assert len(marks_in_memory()) <= 8 + 4


@pytest.mark.slow
def test_three_hundred_ids_salts_and_headers_leave_nothing_behind(server):
    statuses = send_all(server, (f"zq{index}qz" for index in range(300)), most=1)
    assert statuses == [200] * 300
    server.wait_until_idle(60)
    # Python's urllib remembers the last 128 URLs that it split.
    assert len(marks_in_memory()) <= 128 + 4


def test_nothing_that_a_client_sends_begins_a_line_of_the_log(server):
    written, records = io.StringIO(), []
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s %(message)s"))
    handler.addFilter(lambda record: records.append(record) or True)
    loggers = [logging.getLogger(name) for name in ("atom_server", "atom_core", "uvicorn", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        statuses = send_all(server, iter(["zq0qz"]), HOSTILE)
        server.wait_until_idle(60)
        deadline = time.monotonic() + 30
        while len(records) < len(statuses) and time.monotonic() < deadline:
            time.sleep(0.02)  # a request is logged after its client has the answer
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
    lines = written.getvalue().split("\n")[:-1]
    assert 500 not in statuses
    assert len(lines) == len(records) >= len(statuses)
    assert all(line.isprintable() and re.match(r"(DEBUG|INFO|WARNING|ERROR) \w", line) for line in lines), lines
