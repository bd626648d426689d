"""`Backend`: the protocol of one kind of server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from atom_server.bench.outcome import Outcome


@dataclass(frozen=True)
class Ask:
    """One prompt, and what is wanted of it.

    Attributes:
        prompt: a text, or token ids for servers that take them.
        output_len: tokens of the answer, at most.
        num_tokens: tokens of the prompt, as far as the client knows; the server's own count comes first.
        more: fields that are added to the body as they are.
    """

    prompt: str | list[int]
    output_len: int
    num_tokens: int = 0
    model: str | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """How to talk to one kind of server.

    Attributes:
        path: that requests go to unless told otherwise.
        streams: whether the answer is server-sent events; else it is one JSON object.
    """

    path: str
    streams: bool

    def body(self, ask: Ask) -> dict[str, Any]:
        """The JSON of a request."""
        ...

    def read(self, event: Any, outcome: Outcome) -> str:
        """The text of one event of the answer; counts of tokens go to `outcome`.

        Raises:
            BenchError: the event is an error.
            KeyError, TypeError: it is none of this protocol.
        """
        ...
