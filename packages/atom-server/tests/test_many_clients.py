"""Many clients at once, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import httpx

NUM_CLIENTS = 40
MAX_TOKENS = 24


def body(index, **fields):
    prompt = f"client {index} wants {'very ' * (index % 7)}different words"
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True} | fields


async def stream_text(http, url, fields, *, leave_after=None):
    """Text of a stream, or None after leaving it early."""
    parts = []
    async with http.stream("POST", url + "/v1/completions", json=fields | {"stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                parts += [choice["text"] for choice in chunk["choices"]]
            if leave_after is not None and len(parts) >= leave_after:
                return None
    return "".join(parts)


def run_all(server, leave_after):
    async def work():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as http:
            return await asyncio.gather(
                *(stream_text(http, server.url, body(i), leave_after=leave_after(i)) for i in range(NUM_CLIENTS))
            )

    return asyncio.run(work())


def test_concurrent_streams_say_what_each_says_alone_also_when_half_of_them_leave(server):
    alone = [server.post("/v1/completions", **body(i)).json()["choices"][0]["text"] for i in range(NUM_CLIENTS)]
    assert run_all(server, lambda index: None) == alone
    server.wait_until_idle()

    survivors = run_all(server, lambda index: 3 if index % 2 else None)
    assert survivors[::2] == alone[::2]
    assert survivors[1::2] == [None] * (NUM_CLIENTS // 2)
    server.wait_until_idle()


def leave_while_waiting(server, **fields):
    async def work():
        async with httpx.AsyncClient(timeout=60) as http:
            request = asyncio.ensure_future(http.post(server.url + "/v1/completions", json=fields))
            while not server.state.active:
                assert not request.done()
                await asyncio.sleep(0.005)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(work())


def test_a_client_that_leaves_before_a_whole_answer_frees_its_blocks(server, caplog):
    with caplog.at_level(logging.INFO, logger="atom_server"):
        leave_while_waiting(server, **body(0, max_tokens=480, n=32, temperature=1))
        server.wait_until_idle(seconds=5)
        deadline = time.monotonic() + 5  # the line is written when the connection ends, after the blocks are free
        while not (lines := [line for line in caplog.messages if " 499 " in line]) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(lines) == 1


def test_a_client_that_leaves_with_many_prompts_frees_all_of_them(server):
    prompts = [body(index)["prompt"] for index in range(8)]
    leave_while_waiting(server, **body(0, prompt=prompts, max_tokens=450))
    server.wait_until_idle(seconds=5)


def test_a_slow_reader_gets_everything(server):
    expected = server.post("/v1/completions", **body(1)).json()["choices"][0]["text"]

    async def work():
        async with httpx.AsyncClient(timeout=60) as http:
            fields = body(1, stream=True)
            async with http.stream("POST", server.url + "/v1/completions", json=fields) as answer:
                await asyncio.sleep(0.5)
                return [line async for line in answer.aiter_lines()]

    chunks = [json.loads(line[6:]) for line in asyncio.run(work()) if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
