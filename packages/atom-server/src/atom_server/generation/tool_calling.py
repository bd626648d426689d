"""What a chat's tools ask of the text: checks of the request, and the grammar that holds the model to them."""

from __future__ import annotations

from typing import Any

from atom_core import StructuredOutputParams
from atom_server.errors import APIError
from atom_server.output import enforcement
from atom_server.output.notation import NOTATIONS, TaggedStyle
from atom_server.output.output_format import OutputFormat
from atom_server.output.tagged_grammar import can_be_tagged
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.fields.tools import NamedToolChoice


def check_tools(body: ChatCompletionRequest) -> None:
    """Refuse what cannot be done with these tools.

    Raises:
        APIError: 400 that names the field.
    """
    names = [tool.function.name for tool in body.tools]
    if len(set(names)) != len(names):
        raise APIError(400, "each function in 'tools' needs a name of its own", param="tools")
    missing = [name for name in body.chosen_names or () if name not in names]
    if missing:
        raise APIError(400, f"'tool_choice' names {missing[0]!r}, which is not in 'tools'", param="tool_choice")
    if body.tool_choice not in (None, "none", "auto") and not names:
        raise APIError(400, "'tool_choice' needs 'tools'", param="tool_choice")
    if body.is_call_enforced and body.constraint() is not None:
        message = "an enforced 'tool_choice' and a constraint on the text exclude each other"
        raise APIError(400, message, param="tool_choice")


def schemas_of(body: ChatCompletionRequest) -> dict[str, Any]:
    """Parameters of each function that may be called."""
    return {tool.function.name: tool.function.parameters or {} for tool in body.active_tools}


def is_written_as_json(body: ChatCompletionRequest, output: OutputFormat) -> bool:
    """Whether enforced calls are bare JSON: where tags cannot be held to a schema, or no notation is known."""
    if not body.is_call_enforced or output.is_harmony:
        return False
    if not isinstance(output.notation.style, TaggedStyle):
        return not output.notation.trigger
    return not all(can_be_tagged(output.notation.style, schema) for schema in schemas_of(body).values())


def makes_several(body: ChatCompletionRequest) -> bool:
    """Whether one turn may hold several calls."""
    return body.parallel_tool_calls and not isinstance(body.tool_choice, NamedToolChoice)


def reply_constraint(body: ChatCompletionRequest, output: OutputFormat, prompt: str) -> StructuredOutputParams | None:
    """The grammar of the whole reply: thinking, where the model thinks, and then what the request asks for."""
    asked = body.constraint()
    if asked is not None and (body.continue_final_message or (output.reasoning is None and not output.is_harmony)):
        return asked
    if asked is not None and output.answer is None:
        return asked
    form = _call_format(body, output) if asked is None else enforcement.constraint_format(asked)
    if form is None:
        return asked
    if asked is not None and output.is_harmony:
        form = enforcement.harmony_answer(form)
    if asked is not None and output.answer not in (None, ("", "")):
        form = enforcement.tag(output.answer[0], form, output.answer[1])
    if output.reasoning is None or body.continue_final_message:
        return enforcement.as_constraint(form)
    begin, end = output.reasoning
    if not output.has_thought(prompt):
        form = enforcement.after_thinking(begin, end, form, is_open=output.is_thinking(prompt))
    return enforcement.as_constraint(form)


def _call_format(body: ChatCompletionRequest, output: OutputFormat) -> dict[str, Any] | None:
    """The grammar of calls, where there is something to enforce."""
    tools, several = body.active_tools, makes_several(body)
    if body.is_call_enforced:
        if output.is_harmony:
            return enforcement.harmony_call(tools)
        notation = NOTATIONS["json"] if is_written_as_json(body, output) else output.notation
        return enforcement.required_calls(notation, tools, several=several)
    strict = [tool for tool in tools if tool.function.strict]
    if not strict:
        return None
    if output.is_harmony:
        call, answer = enforcement.harmony_call(tools), enforcement.harmony_answer(enforcement.ANY_TEXT)
        return enforcement.either(answer, call)
    style = output.notation.style
    if not output.notation.trigger or (
        isinstance(style, TaggedStyle) and not all(can_be_tagged(style, tool.function.parameters) for tool in strict)
    ):
        return None
    return enforcement.text_or_calls(output.notation, tools, several=several)
