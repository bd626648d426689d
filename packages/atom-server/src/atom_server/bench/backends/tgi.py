"""Text Generation Inference: streams of ``/generate_stream``, one event for each token."""

from __future__ import annotations

from typing import Any

from atom_server.bench.backends.backend import Ask
from atom_server.bench.outcome import BenchError, Outcome


class TGI:
    """Greedy answers; the last event tells how many tokens were generated."""

    path = "/generate_stream"
    streams = True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Backend`. TGI takes no temperature of 0: without sampling it is greedy."""
        parameters: dict[str, Any] = {"max_new_tokens": ask.output_len, "do_sample": False, "details": True}
        parameters |= {"truncate": ask.num_tokens} if ask.num_tokens else {}
        parameters |= {"ignore_eos_token": True} if ask.ignore_eos else {}
        parameters |= {} if ask.logprobs is None else {"top_n_tokens": ask.logprobs}
        return {"inputs": ask.prompt, "parameters": parameters | dict(ask.more)}

    def read(self, event: Any, outcome: Outcome) -> str:
        """See `Backend`."""
        if "error" in event:
            raise BenchError(str(event["error"]))
        if details := event.get("details"):
            outcome.num_output_tokens = details["generated_tokens"]
            outcome.num_input_tokens = details.get("input_length") or outcome.num_input_tokens
        return event["token"]["text"]
