"""DeepSpeed-MII: its completions answer with one object, so that the first token comes when the last does."""

from __future__ import annotations

from typing import Any

from atom_server.bench.backends.backend import Ask
from atom_server.bench.outcome import BenchError, Outcome


class DeepSpeedMII:
    """Whole answers of ``/v1/completions``; only their latency can be measured."""

    path = "/v1/completions"
    streams = False

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Backend`. MII takes no temperature of 0."""
        body: dict[str, Any] = {"prompt": ask.prompt, "max_tokens": ask.output_len, "temperature": 0.01, "top_p": 1.0}
        body |= {"model": ask.model} if ask.model else {}
        return body | ({"ignore_eos": True} if ask.ignore_eos else {}) | dict(ask.more)

    def read(self, event: Any, outcome: Outcome) -> str:
        """See `Backend`. Older versions answer with a list of texts in place of choices."""
        if event.get("error"):
            raise BenchError(str(event["error"]))
        if usage := event.get("usage"):
            outcome.num_input_tokens, outcome.num_output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        return event["choices"][0]["text"] if "choices" in event else event["text"][0]
