"""Earlier calls as a chat template wants them: templates differ in what they take for arguments and for no content."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom_server.errors import APIError
from atom_server.prompts.chat_template import ChatTemplate

_NAME, _KEY = "probe_function", "probe_key"
# A dict printed by Python, or JSON within a JSON string: arguments of the wrong kind.
_MISPRINT = re.compile(rf"""'{_KEY}'|\\"{_KEY}""")


@dataclass(frozen=True)
class HistoryStyle:
    """What a template takes.

    Attributes:
        has_objects: arguments as objects, else as JSON text.
        no_content: content of a message that has calls alone.
    """

    has_objects: bool = True
    no_content: str | None = ""

    @classmethod
    def of(cls, template: ChatTemplate) -> HistoryStyle:
        """The first style in which the template writes a call properly; the default where it writes none at all."""
        styles = [cls(has_objects, content) for has_objects in (True, False) for content in ("", None)]
        return next((style for style in styles if _writes_calls(template, style)), cls())

    def applied(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with calls, reasoning and missing content in this style."""
        return [self._message(dict(message)) for message in messages]

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.pop("tool_calls", None)
        has_calls = isinstance(calls, list) and bool(calls)
        if has_calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        message["content"] = message.get("content") or (self.no_content if has_calls else "")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and message.get("role") == "assistant":
            message["reasoning_content"] = message["reasoning"] = reasoning
            if has_calls and not message["content"]:
                message["thinking"] = reasoning  # GPT-OSS shows it again before a call, and nowhere else
        return message

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        arguments = function.get("arguments")
        if self.has_objects and (isinstance(arguments, str) or arguments is None):
            with contextlib.suppress(ValueError):  # broken ones stay as the model wrote them
                arguments = json.loads(arguments or "{}")
        elif not self.has_objects and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _writes_calls(template: ChatTemplate, style: HistoryStyle) -> bool:
    call = {"id": "call12345", "type": "function", "function": {"name": _NAME, "arguments": f'{{"{_KEY}": "x"}}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call12345", "name": _NAME, "content": "x"},
    ]
    try:
        text = template.render(style.applied(messages))
    except APIError:
        return False
    return _NAME in text and _KEY in text and _MISPRINT.search(text) is None and "None" not in text
