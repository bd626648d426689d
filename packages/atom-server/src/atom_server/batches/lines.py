"""Lines of a batch: requests in OpenAI's batch format, or bodies alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from atom_server.bodies.body import decode_json_object
from atom_server.bodies.decoding_cost import DecodingCost
from atom_server.errors import APIError

# The routes whose answers are whole; those of OpenAI's batches.
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings")
_MAX_LINE_BYTES = 2**30
_MAX_NAME = 512
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BatchError(ValueError):
    """A file of a batch is not what it should be. The message is one line: the file, the line, and what is allowed."""


@dataclass(frozen=True)
class BatchLine:
    """One request.

    Attributes:
        custom_id: its name, which no other line of the file has.
        url: the route.
        body: what is sent to it.
        number: the line's number in the file, from 1.
        num_bytes: the length of the line.
    """

    custom_id: str
    url: str
    body: dict[str, Any]
    number: int = field(default=0, compare=False)
    num_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class BadLine:
    """A line that is no request.

    Attributes:
        custom_id: its name, as far as that could be read and is its own.
        problem: what is wrong.
    """

    custom_id: str | None
    number: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class BatchFile:
    """The requests of a file of JSON lines.

    A line has the keys of OpenAI's batch format (``custom_id``, ``method``, ``url``, ``body``), or is a body with
    ``prompt`` or ``messages``, and a ``custom_id`` if it likes: unnamed ones are called "line-N", with N from 1.

    Attributes:
        defaults: fields of bodies alone that their lines leave out; None takes OpenAI's format only.
        is_chat: a ``prompt`` that is text is what a user says.
        routes: the routes that a line may ask.
        max_line_bytes: longer lines are bad ones.
    """

    path: Path
    defaults: dict[str, Any] | None = None
    is_chat: bool = False
    routes: Collection[str] = ROUTES
    max_line_bytes: int = _MAX_LINE_BYTES

    def read(self) -> Iterator[BatchLine | BadLine]:
        """The lines in order; empty ones are passed over.

        Raises:
            OSError: the file cannot be read.
        """
        names: dict[str, int] = {}
        for number, text in self._texts():
            line = self._line(text, number)
            if isinstance(line, BatchLine) and names.setdefault(line.custom_id, number) != number:
                problem = f"its custom_id {line.custom_id!r} is that of line {names[line.custom_id]}: give each its own"
                line = BadLine(None, number, problem)
            yield line

    def __iter__(self) -> Iterator[BatchLine]:
        """The requests in order.

        Raises:
            BatchError: a line is no request.
            OSError: the file cannot be read.
        """
        for line in self.read():
            if isinstance(line, BadLine):
                raise BatchError(f"{self.path}, line {line.number}: {line.problem}")
            yield line

    def check(self) -> int:
        """Read all of it; how many requests there are.

        Raises:
            BatchError, OSError: as `__iter__`; or there is no line.
        """
        found = sum(1 for _ in self)
        if not found:
            raise BatchError(f"{self.path} has no requests: each line is one, such as" + ' {"prompt": "Hello"}')
        return found

    def num_lines(self) -> int:
        """How many lines are not empty, whatever is in them."""
        return sum(1 for _ in self._texts())

    def _texts(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            number = 0
            while text := file.readline(self.max_line_bytes + 1):
                number += 1
                if len(text) > self.max_line_bytes and not text.endswith(b"\n"):
                    _pass_over_line(file)
                text = text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text
                if text.strip():
                    yield number, text

    def _line(self, text: bytes, number: int) -> BatchLine | BadLine:
        custom_id = None
        try:
            if len(text) > self.max_line_bytes:
                raise ValueError(f"it is longer than {self.max_line_bytes} bytes, the most that a line may have")
            DecodingCost().add(text)
            read = decode_json_object(text)
            custom_id = self._name(read.pop("custom_id", None), number)
            url, body = self._published(read) if self.defaults is None or "body" in read else self._alone(read)
            for name in ("stream", "background"):
                if body.get(name):
                    raise ValueError(f"{name} is true; answers of a batch are whole")
        except APIError as error:
            return BadLine(custom_id, number, error.message.replace("the body", "the line", 1))
        except ValueError as error:
            return BadLine(custom_id, number, str(error))
        return BatchLine(custom_id, url, body, number, len(text))

    def _name(self, given: Any, number: int) -> str:
        if given is None and self.defaults is not None:
            return f"line-{number}"
        if not isinstance(given, str) or not 0 < len(given) <= _MAX_NAME:
            raise ValueError(f"custom_id is {_shown(given)}; it must be text of 1 to {_MAX_NAME} characters")
        return given

    def _published(self, read: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if read.get("method", "POST") != "POST" or read.get("url") not in self.routes:
            asked = f"{_shown(read.get('method', 'POST'))} {_shown(read.get('url'))}"
            raise ValueError(f"it asks for {asked}; allowed is 'POST' with one of {', '.join(self.routes)}")
        if not isinstance(read.get("body"), dict):
            raise ValueError("its body is no object of JSON")
        return read["url"], read["body"]

    def _alone(self, read: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        body = (self.defaults or {}) | read
        if self.is_chat and isinstance(body.get("prompt"), str):
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        if "messages" in body:
            return "/v1/chat/completions", body
        if "prompt" in body:
            return "/v1/completions", body
        raise ValueError("it has neither prompt, messages nor body: one of them says what is asked")


def _pass_over_line(file: BinaryIO) -> None:
    while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
        pass


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
