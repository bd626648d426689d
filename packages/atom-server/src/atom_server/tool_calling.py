"""What a chat's tools and its template mean for the text: the constraint on it, and the parser of it."""

from __future__ import annotations

from typing import Any

from atom_core import StructuredOutputParams
from atom_server.chat_template import ChatTemplate
from atom_server.errors import APIError
from atom_server.options import ServerOptions
from atom_server.output.call_parser import CallParser
from atom_server.output.notation import NOTATIONS
from atom_server.output.parts import Parser
from atom_server.output.plain_json import JsonParser
from atom_server.output.reasoning import MARKERS, ReasoningParser
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.tools import NamedToolChoice, Tool

# Marker in a chat template -> how models with such a template write calls.
_CALL_MARKERS = (("<tool_call>", "hermes"), ("<|python_tag|>", "json"))
# Templates whose calls are written in ways that are not read here.
_UNREAD = ("<arg_key>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>", "<function=")


def check_tools(body: ChatCompletionRequest, template: ChatTemplate | None, options: ServerOptions) -> None:
    """Refuse what cannot be done with these tools.

    Raises:
        APIError: 400 that names the field.
    """
    names = [tool.function.name for tool in body.tools]
    if len(set(names)) != len(names):
        raise APIError(400, "each function in 'tools' needs a name of its own", param="tools")
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        message = f"'tool_choice' names {choice.function.name!r}, which is not in 'tools'"
        raise APIError(400, message, param="tool_choice")
    if choice not in (None, "none", "auto") and not names:
        raise APIError(400, "'tool_choice' needs 'tools'", param="tool_choice")
    if not body.active_tools:
        return
    if body.is_call_enforced and body.constraint() is not None:
        message = "an enforced 'tool_choice' and a constraint on the text exclude each other"
        raise APIError(400, message, param="tool_choice")
    if not body.is_call_enforced and template is not None and call_format(template, options) is None:
        message = (
            "this model writes calls in a way that is not read here: give \"tool_choice\": \"required\", "
            "or start the server with --tool-call-format"
        )  # fmt: skip
        raise APIError(400, message, param="tools", code="unsupported_parameter")


def call_format(template: ChatTemplate, options: ServerOptions) -> str | None:
    """ "hermes" or "json", as set or as the template shows; None for a format that is not read."""
    if options.tool_call_format != "auto":
        return options.tool_call_format
    if any(marker in template.source for marker in _UNREAD):
        return None
    return next((name for marker, name in _CALL_MARKERS if marker in template.source), "json")


def call_constraint(body: ChatCompletionRequest) -> StructuredOutputParams | None:
    """A list of calls as JSON where `tool_choice` enforces one, else what the request asks for."""
    if not body.is_call_enforced:
        return body.constraint()
    tools = body.active_tools
    several = body.parallel_tool_calls and not isinstance(body.tool_choice, NamedToolChoice)
    definitions = {f"call{index}": _arguments_schema(tool, index) for index, tool in enumerate(tools)}
    calls = [_call_schema(tool, index) for index, tool in enumerate(tools)]
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    schema = {"type": "array", "items": items, "minItems": 1, "$defs": definitions}
    return StructuredOutputParams(json=schema if several else schema | {"maxItems": 1})


def output_parser(
    body: ChatCompletionRequest, template: ChatTemplate | None, prompt: str, options: ServerOptions
) -> Parser | None:
    """Reads one choice's text; None where all of it is content."""
    if template is None:
        return None
    names = [tool.function.name for tool in body.active_tools]
    if body.is_call_enforced:
        return JsonParser(names)
    calls = (
        (CallParser(NOTATIONS["hermes"]) if call_format(template, options) == "hermes" else JsonParser(names))
        if names
        else None
    )
    if body.constraint() is not None or body.continue_final_message:
        return calls
    chosen = options.reasoning_format
    if chosen == "auto":
        chosen = next((name for name, (_, end) in MARKERS.items() if end in template.source), "none")
    if chosen == "none":
        return calls
    begin, end = MARKERS[chosen]
    return ReasoningParser(begin, end, calls, is_open=prompt.rstrip().endswith(begin))


def _call_schema(tool: Tool, index: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": {"$ref": f"#/$defs/call{index}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _arguments_schema(tool: Tool, index: int) -> Any:
    schema = tool.function.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return _moved(
        schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}, f"#/$defs/call{index}"
    )


def _moved(schema: Any, to: str) -> Any:
    """`schema` with its references to itself pointing to where it now is."""
    if isinstance(schema, list):
        return [_moved(entry, to) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, to) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
