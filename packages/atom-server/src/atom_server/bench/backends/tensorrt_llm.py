"""TensorRT-LLM behind Triton: streams of the ``ensemble`` model, whose events have no counts of tokens."""

from __future__ import annotations

from typing import Any

from atom_server.bench.backends.backend import Ask
from atom_server.bench.outcome import BenchError, Outcome


class TensorRTLLM:
    """Each event is a piece of text; the client counts tokens (see `count_outputs`)."""

    path = "/v2/models/ensemble/generate_stream"
    streams = True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Backend`. Without end tokens is asked for as an answer of least length."""
        body: dict[str, Any] = {
            "accumulate_tokens": False,
            "text_input": ask.prompt,
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": ask.output_len,
            "stream": True,
        }
        return body | ({"min_length": ask.output_len} if ask.ignore_eos else {}) | dict(ask.more)

    def read(self, event: Any, outcome: Outcome) -> str:
        """See `Backend`."""
        if "error" in event:
            raise BenchError(str(event["error"]))
        return event["text_output"]
