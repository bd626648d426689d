"""Fields that are known and not built: accepting them silently would change what the client gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_server.errors import unsupported

_REASONS = {
    "best_of": "use 'n', and choose by logprobs",
    "use_beam_search": "there is no beam search",
    "suffix": "text cannot be generated before a suffix",
    "tools": "tools work in /v1/chat/completions",
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "modalities": 'only text is supported: leave it out or give ["text"]',
    "audio": "only text is supported",
    "web_search_options": "there is no web search",
    "chat_template": "templates of requests are not run; start the server with --chat-template FILE",
    "prompt_embeds": "send text or token ids",
    "logits_processors": "code of requests is not run",
    "repetition_detection": "use the penalties",
    "watermarking": "there is no watermarking",
    "mm_processor_kwargs": "only text is supported",
    "guided_json": 'say "structured_outputs": {"json": ...} instead',
    "guided_regex": 'say "structured_outputs": {"regex": ...} instead',
    "guided_choice": 'say "structured_outputs": {"choice": ...} instead',
    "guided_grammar": 'say "structured_outputs": {"grammar": ...} instead',
}
# Values that ask for nothing.
_NOTHING: tuple[Any, ...] = ([], {}, "", "none", ["text"])


def refuse_unsupported(extra: Mapping[str, Any] | None) -> None:
    """Refuse fields that would change the answer and are not built; other unknown fields are harmless.

    Args:
        extra: fields that the schema does not know.

    Raises:
        APIError: 400 with code "unsupported_parameter".
    """
    for name, value in (extra or {}).items():
        if name in _REASONS and value is not False and value not in _NOTHING:
            raise unsupported(f"{name!r} is not supported: {_REASONS[name]}", name)
