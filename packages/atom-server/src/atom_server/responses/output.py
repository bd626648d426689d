"""`OutputWriter`: the output items of a response, and the events that tell of them while they grow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from atom_server.generation.reply_reader import CallIds
from atom_server.output.parts import Part

_ITEM_OF = {"content": "message", "reasoning": "reasoning", "name": "function_call", "arguments": "function_call"}
_PREFIX_OF = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
# Item -> the part that its text is in.
_PART_OF = {"message": "output_text", "reasoning": "reasoning_text"}


class OutputWriter:
    """Puts parts into items, one after the other.

    Args:
        event: writes an event of a type with its fields.
        call_ids: makes the ids of calls.

    Attributes:
        items: the items so far.
    """

    def __init__(self, event: Callable[..., bytes], call_ids: CallIds) -> None:
        self.items: list[dict[str, Any]] = []
        self._event = event
        self._call_ids = call_ids
        self._num_calls = 0
        self._is_open = False

    def take(self, parts: list[Part], logprobs: list[dict[str, Any]]) -> bytes:
        """The events of these parts; `logprobs` go with the first text of the message."""
        data = b""
        for part in parts:
            kind = _ITEM_OF[part.kind]
            if part.kind == "name":
                data += self._end("completed") + self._begin_call(part.text)
                continue
            if not self._is_open or self.items[-1]["type"] != kind:
                data += self._end("completed") + self._begin_text(kind)
            if kind == "function_call":
                data += self._add_arguments(part.text)
            else:
                data += self._add_text(kind, part.text, logprobs if kind == "message" else [])
                logprobs = [] if kind == "message" else logprobs
        return data

    def end(self, status: str, logprobs: list[dict[str, Any]]) -> bytes:
        """The end of the last item, which is "completed" or "incomplete". There is one item at least.

        `logprobs` are of last tokens without text.
        """
        data = b"" if self.items else self._begin_text("message")
        if self.items[-1]["type"] == "message":
            self.items[-1]["content"][0]["logprobs"] += logprobs
        return data + self._end(status)

    def _begin_call(self, name: str) -> bytes:
        item = {"call_id": self._call_ids(name, self._num_calls), "name": name, "arguments": ""}
        self._num_calls += 1
        return self._begin("function_call", item)

    def _begin_text(self, kind: str) -> bytes:
        fields: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        data = self._begin(kind, {**fields, "content": []})
        self.items[-1]["content"] = [_text_part(kind)]
        return data + self._event("response.content_part.added", **self._where(), part=_text_part(kind))

    def _begin(self, kind: str, fields: dict[str, Any]) -> bytes:
        item_id = f"{_PREFIX_OF[kind]}_{uuid.uuid4().hex}"
        self.items.append({"type": kind, "id": item_id, "status": "in_progress", **fields})
        self._is_open = True
        return self._event("response.output_item.added", output_index=len(self.items) - 1, item=self.items[-1])

    def _add_arguments(self, text: str) -> bytes:
        self.items[-1]["arguments"] += text
        item_id, index = self.items[-1]["id"], len(self.items) - 1
        return self._event("response.function_call_arguments.delta", item_id=item_id, output_index=index, delta=text)

    def _add_text(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        part = self.items[-1]["content"][0]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += logprobs
        told = {"logprobs": logprobs} if kind == "message" else {}
        return self._event(f"response.{_PART_OF[kind]}.delta", **self._where(), delta=text, **told)

    def _end(self, status: str) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        index = len(self.items) - 1
        if item["type"] == "function_call":
            named = {"item_id": item["id"], "output_index": index, "name": item["name"]}
            data = self._event("response.function_call_arguments.done", **named, arguments=item["arguments"])
        else:
            part = item["content"][0]
            told = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            done = f"response.{part['type']}.done"
            data = self._event(done, **self._where(), text=part["text"], **told)
            data += self._event("response.content_part.done", **self._where(), part=part)
        return data + self._event("response.output_item.done", output_index=index, item=item)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}


def _text_part(kind: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
    return {"type": _PART_OF[kind], "text": "", **more}
