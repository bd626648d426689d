"""`MessageWriter`: the blocks and events of the Messages API."""

from __future__ import annotations

import json
from typing import Any

from atom_server.answers.streaming import named_event
from atom_server.generation.generation import Generation
from atom_server.generation.reply_reader import CallIds
from atom_server.output.parts import Part

_BLOCK_OF = {"content": "text", "reasoning": "thinking", "name": "tool_use", "arguments": "tool_use"}
_FIELD_OF = {"text": "text", "thinking": "thinking"}


class MessageWriter:
    """Builds one message from parts, and gives the events of each.

    Attributes:
        blocks: the blocks so far. The input of a call becomes an object when its block ends.
    """

    def __init__(self, generation: Generation, call_ids: CallIds) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._generation = generation
        self._call_ids = call_ids
        self._num_calls = 0
        self._arguments = ""
        self._is_open = False

    def message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message without its end."""
        return {
            "id": self._generation.id,
            "type": "message",
            "role": "assistant",
            "model": self._generation.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(),
        }

    def start(self) -> bytes:
        """The first event, from which clients count. It waits for the first token: then cached tokens are known."""
        return _event("message_start", message=self.message([]))

    def take(self, parts: list[Part]) -> bytes:
        """The events of these parts."""
        return b"".join(self._take(part) for part in parts)

    def end_blocks(self) -> bytes:
        """The end of the last block. A message has one block at least."""
        return (b"" if self.blocks else self._begin("text")) + self._end()

    def stop(self, finish_reason: str | None, stop_reason: int | str | None) -> bytes:
        """The last events."""
        ending = self.ending(finish_reason, stop_reason)
        return _event("message_delta", delta=ending, usage=self.usage()) + _event("message_stop")

    def ending(self, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, str | None]:
        """Why the message ended."""
        if finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        return {"stop_reason": "tool_use" if self._num_calls else "end_turn", "stop_sequence": None}

    def usage(self) -> dict[str, int]:
        """Anthropic's counts, whose input tokens are those that were not cached."""
        usage = self._generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion_tokens,
        }

    def _take(self, part: Part) -> bytes:
        kind = _BLOCK_OF[part.kind]
        data = b""
        if part.kind == "name":
            data = self._end() + self._begin("tool_use", part.text)
        elif not self._is_open or self.blocks[-1]["type"] != kind:
            data = self._end() + self._begin(kind)
        return data + (b"" if part.kind == "name" else self._delta(kind, part.text))

    def _begin(self, kind: str, name: str = "") -> bytes:
        block: dict[str, Any] = {"type": kind}
        if kind == "tool_use":
            block |= {"id": self._call_ids(name, self._num_calls), "name": name, "input": {}}
            self._num_calls += 1
        else:
            block |= {_FIELD_OF[kind]: ""} | ({"signature": ""} if kind == "thinking" else {})
        self.blocks.append(block)
        self._is_open = True
        return _event("content_block_start", index=len(self.blocks) - 1, content_block=block)

    def _delta(self, kind: str, text: str) -> bytes:
        if kind == "tool_use":
            self._arguments += text
            delta = {"type": "input_json_delta", "partial_json": text}
        else:
            self.blocks[-1][_FIELD_OF[kind]] += text
            delta = {"type": f"{kind}_delta", _FIELD_OF[kind]: text}
        return _event("content_block_delta", index=len(self.blocks) - 1, delta=delta)

    def _end(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            arguments, self._arguments = self._arguments, ""
            block["input"] = _input_of(arguments)
        return _event("content_block_stop", index=len(self.blocks) - 1)


def _input_of(arguments: str) -> dict[str, Any]:
    """The input as an object; empty for a call that broke off."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
