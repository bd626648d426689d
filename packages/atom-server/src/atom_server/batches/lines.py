"""Lines of a batch: requests in OpenAI's batch format, or bodies alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The routes whose answers are whole; those of OpenAI's batches.
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings")


class BatchError(ValueError):
    """A file of a batch is not what it should be. The message is one line: the file, the line, and what is allowed."""


@dataclass(frozen=True)
class BatchLine:
    """One request.

    Attributes:
        custom_id: its name, which no other line of the file has.
        url: the route.
        body: what is sent to it.
    """

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class BatchFile:
    """The requests of a file of JSON lines.

    A line has the keys of OpenAI's batch format (``custom_id``, ``method``, ``url``, ``body``), or is a body with
    ``prompt`` or ``messages``, and a ``custom_id`` if it likes: unnamed ones are called "line-N", with N from 1.

    Attributes:
        defaults: fields of bodies alone that their lines leave out.
        is_chat: a ``prompt`` that is text is what a user says.
    """

    path: Path
    defaults: dict[str, Any]
    is_chat: bool = False

    def __iter__(self) -> Iterator[BatchLine]:
        """The lines in order; empty ones are passed over.

        Raises:
            BatchError: a line is no request.
            OSError: the file cannot be read.
        """
        with self.path.open(encoding="utf-8-sig") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    try:
                        yield self._line(text, number)
                    except (ValueError, RecursionError) as error:
                        raise BatchError(f"{self.path}, line {number}: {error}") from error

    def check(self) -> int:
        """Read all of it; how many requests there are.

        Raises:
            BatchError, OSError: as `__iter__`; or two lines have one name, or there is no line.
        """
        found: dict[str, int] = {}
        for count, line in enumerate(self, 1):
            if line.custom_id in found:
                raise BatchError(
                    f"{self.path} has the custom_id {line.custom_id!r} in its requests {found[line.custom_id]} and "
                    f"{count}: each needs one of its own, by which its answer is found"
                )
            found[line.custom_id] = count
        if not found:
            raise BatchError(f"{self.path} has no requests: each line is one, such as" + ' {"prompt": "Hello"}')
        return len(found)

    def _line(self, text: str, number: int) -> BatchLine:
        read = json.loads(text)
        if not isinstance(read, dict):
            raise ValueError(f"a request is an object of JSON, and this is {type(read).__name__}")
        custom_id = read.pop("custom_id", f"line-{number}")
        if not isinstance(custom_id, str) or not custom_id:
            raise ValueError(f"custom_id is {custom_id!r}; it must be text")
        url, body = self._published(read) if "body" in read else self._alone(read)
        if body.get("stream"):
            raise ValueError("stream is true; answers of a batch are whole")
        return BatchLine(custom_id, url, body)

    @staticmethod
    def _published(read: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if read.get("method", "POST") != "POST" or read.get("url") not in ROUTES:
            asked = f"{read.get('method', 'POST')} {read.get('url')}"
            raise ValueError(f"it asks for {asked}; allowed is POST with one of {', '.join(ROUTES)}")
        if not isinstance(read["body"], dict):
            raise ValueError("its body is no object of JSON")
        return read["url"], read["body"]

    def _alone(self, read: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        body = self.defaults | read
        if self.is_chat and isinstance(body.get("prompt"), str):
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        if "messages" in body:
            return "/v1/chat/completions", body
        if "prompt" in body:
            return "/v1/completions", body
        raise ValueError("it has neither prompt, messages nor body: one of them says what is asked")
