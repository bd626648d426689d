"""OpenAI's completions and chat completions, as this server, vLLM, SGLang, LMDeploy and ScaleLLM have them."""

from __future__ import annotations

from typing import Any

from atom_server.bench.backends.backend import Ask
from atom_server.bench.outcome import BenchError, Outcome


class OpenAICompletions:
    """Streams of ``/v1/completions``; the last event has the server's counts of tokens."""

    path = "/v1/completions"
    streams = True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Backend`."""
        logprobs = {} if ask.logprobs is None else {"logprobs": ask.logprobs}
        return _common(ask) | {"prompt": ask.prompt} | logprobs | dict(ask.more)

    def read(self, event: Any, outcome: Outcome) -> str:
        """See `Backend`."""
        _count(event, outcome)
        return "".join(choice.get("text") or "" for choice in event.get("choices", ()))


class OpenAIChat:
    """Streams of ``/v1/chat/completions``, in which the prompt is a user's message."""

    path = "/v1/chat/completions"
    streams = True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Backend`."""
        logprobs = {} if ask.logprobs is None else {"logprobs": True, "top_logprobs": ask.logprobs}
        message = {"role": "user", "content": ask.prompt}
        return _common(ask) | {"messages": [message]} | logprobs | dict(ask.more)

    def read(self, event: Any, outcome: Outcome) -> str:
        """See `Backend`. Reasoning and calls are text too."""
        _count(event, outcome)
        return "".join(_said(choice["delta"]) for choice in event.get("choices", ()))


def _common(ask: Ask) -> dict[str, Any]:
    body: dict[str, Any] = {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"model": ask.model} if ask.model else {}
    body |= {"ignore_eos": True} if ask.ignore_eos else {}
    return body | {"max_tokens": ask.output_len}


def _count(event: Any, outcome: Outcome) -> None:
    if event.get("error"):
        raise BenchError(str(event["error"]))
    if usage := event.get("usage"):
        outcome.num_input_tokens, outcome.num_output_tokens = usage["prompt_tokens"], usage["completion_tokens"]


def _said(delta: dict[str, Any]) -> str:
    text = (delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or "")
    calls = [call.get("function", {}) for call in delta.get("tool_calls") or ()]
    return text + "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)
