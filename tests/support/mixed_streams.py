"""Clients that ask a server for the same few answers over and over, many at a time, and compare every one of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import httpx

_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"
_STEM = list(range(20, 180))  # some prompts begin alike
_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yy"]}}, "required": ["a"]}
_SEEDED = {"seed": 7, "temperature": 1.0, "ignore_eos": True}
# Each is answered by the same text whenever it is asked for.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (_TEXT, {"prompt": "hello there", "max_tokens": 40, "temperature": 0, "ignore_eos": True}),
    "seeded": (_TEXT, {"prompt": "once upon", "max_tokens": 40, **_SEEDED}),
    "filtered": (_TEXT, {"prompt": "x", "max_tokens": 40, "top_k": 20, "top_p": 0.8, "min_p": 0.01, **_SEEDED}),
    "three samples": (_TEXT, {"prompt": "a b c", "n": 3, "max_tokens": 12, **_SEEDED}),
    "two prompts": (_TEXT, {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 12, **_SEEDED}),
    "logprobs": (_TEXT, {"prompt": "y", "logprobs": 3, "max_tokens": 12, **_SEEDED}),
    "penalties": (_TEXT, {"prompt": "z z z", "presence_penalty": 1, "frequency_penalty": 0.5, **_SEEDED}),
    "bias": (_TEXT, {"prompt": "b", "logit_bias": {"9": 5, "11": -100}, "min_tokens": 9, **_SEEDED}),
    "allowed": (_TEXT, {"prompt": "ids", "allowed_token_ids": list(range(30, 90)), "max_tokens": 30, **_SEEDED}),
    "stop": (_TEXT, {"prompt": "stop", "stop": ["e", "th"], "max_tokens": 60, **_SEEDED}),
    "long prompt": (_TEXT, {"prompt": [*_STEM, 5], "max_tokens": 8, **_SEEDED}),
    "another long prompt": (_TEXT, {"prompt": [*_STEM, 6, 7], "max_tokens": 16, **_SEEDED}),
    "echo": (_TEXT, {"prompt": "say it", "echo": True, "max_tokens": 8, **_SEEDED}),
    "chat": (_CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 24, **_SEEDED}),
    "json": (_TEXT, {"prompt": "j", "structured_outputs": {"json": _SCHEMA}, "max_tokens": 40, "seed": 3}),
    "regex": (_TEXT, {"prompt": "r", "structured_outputs": {"regex": "[ab]{4,9}c"}, "max_tokens": 40, "seed": 4}),
    "choice": (_TEXT, {"prompt": "c", "structured_outputs": {"choice": ["yes", "no", "maybe"]}, "seed": 5}),
}
_LEAVES_EARLY = 0.1  # of the streams: closed after their first event


class MixedStreams:
    """`number` clients of `url`; each asks for one of `KINDS` after another, half of them as streams.

    The server has to keep idle connections for as long as the clients ask.

    Attributes:
        problems: answers that differ from the one that was given alone.
        answered: how often each kind was answered, and how many clients left early.
    """

    def __init__(self, url: str, number: int, *, seed: int) -> None:
        self._url, self._number, self._seed = url, number, seed
        self._expected: dict[str, dict[int, str]] = {}
        self.problems: list[str] = []
        self.answered: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Learn each answer by asking for it alone, then let all clients ask for so long."""
        asyncio.run(self._run(seconds))

    async def _run(self, seconds: float) -> None:
        # No connection expires: httpx may close one that it has just given to another request.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=120, limits=limits) as client:
            for kind in KINDS:
                self._expected[kind] = await _whole(client, kind)
            until = time.monotonic() + seconds
            draws = [random.Random(self._seed * 1000 + number) for number in range(self._number)]
            await asyncio.gather(*(self._ask_on(client, draw, until) for draw in draws), self._probe(client, until))

    async def _ask_on(self, client: httpx.AsyncClient, draw: random.Random, until: float) -> None:
        while time.monotonic() < until:
            kind = draw.choice(list(KINDS))
            leaves = draw.random() < _LEAVES_EARLY
            streams = leaves or draw.random() < 0.5
            self._judge(kind, await (_streamed(client, kind, leaves) if streams else _whole(client, kind)))

    async def _probe(self, client: httpx.AsyncClient, until: float) -> None:
        """One seeded answer every second, whatever the others do."""
        while time.monotonic() < until:
            self._judge("seeded", await _whole(client, "seeded"))
            await asyncio.sleep(1)

    def _judge(self, kind: str, found: dict[int, str] | None) -> None:
        self.answered["left early" if found is None else kind] += 1
        if found is not None and found != self._expected[kind]:
            self.problems.append(f"{kind}: {found} instead of {self._expected[kind]}")


async def _whole(client: httpx.AsyncClient, kind: str) -> dict[int, str]:
    path, fields = KINDS[kind]
    answer = await client.post(path, json=fields)
    assert answer.status_code == 200, f"{kind}: {answer.text}"
    return {choice["index"]: _text_of(choice, "message") for choice in answer.json()["choices"]}


async def _streamed(client: httpx.AsyncClient, kind: str, leaves: bool) -> dict[int, str] | None:
    """The texts of an answer by index; None for a client that leaves after the first event."""
    path, fields = KINDS[kind]
    texts: dict[int, str] = {}
    async with client.stream("POST", path, json=fields | {"stream": True}) as answer:
        assert answer.status_code == 200, f"{kind}: {await answer.aread()!r}"
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                if leaves:
                    return None
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + _text_of(choice, "delta")
    return texts


def _text_of(choice: dict[str, Any], part: str) -> str:
    return choice["text"] if "text" in choice else choice[part].get("content") or ""
