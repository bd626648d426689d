"""Names of fields: what a chat completion calls them, and what the client called them on another route."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from atom_core import InvalidRequestError
from atom_server.errors import APIError

Names = Mapping[str, str]
SAME: Names = MappingProxyType({})

RESPONSES: Names = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
MESSAGES: Names = {
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


@contextlib.contextmanager
def named_as(names: Names) -> Iterator[None]:
    """Rename fields in errors. The request was turned into a chat, and its client knows other names.

    Raises:
        APIError, InvalidRequestError: what came from inside, with other names.
    """
    try:
        yield
    except (InvalidRequestError, APIError) as error:
        raise renamed(error, names) from None


def renamed(error: InvalidRequestError | APIError, names: Names) -> InvalidRequestError | APIError:
    """The same error with other names of fields."""
    message, param = _in_text(error.message, names), _in_path(error.param, names)
    if isinstance(error, InvalidRequestError):
        return InvalidRequestError(message, param, error.code)
    return APIError(error.status, message, param=param, code=error.code, headers=error.headers)


def _in_path(param: str | None, names: Names) -> str | None:
    """``response_format.json_schema.schema`` is ``text.format.schema``: formats have no level of their own there."""
    path = param or ""
    first = re.split(r"\W", path, maxsplit=1)[0]
    return names[first] + path[len(first) :].removeprefix(".json_schema") if first in names else param


def _in_text(message: str, names: Names) -> str:
    """Names in quotes, and those that are no words of a language."""
    for old, new in names.items():
        pattern = rf"\b{old}\b" if "_" in old else f"(?<='){old}(?=')"
        message = re.sub(pattern, new, message)
    return message
