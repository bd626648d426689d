"""Grammars that hold a model to its own notation: structural tags made from the table that the parser reads by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atom_core import StructuredOutputParams
from atom_server.output import harmony
from atom_server.output.bare_keys_grammar import bare_keys_arguments
from atom_server.output.notation import BareKeysStyle, CallNotation, TaggedStyle
from atom_server.output.tagged_grammar import tagged_arguments
from atom_server.schemas.fields.tools import Tool

Format = dict[str, Any]
# In one turn, where nothing but calls may come: a model could go on for ever.
MAX_CALLS = 16
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
ANY_TEXT: Format = {"type": "any_text"}


def required_calls(notation: CallNotation, tools: Sequence[Tool], *, several: bool) -> Format:
    """One call at least, and nothing but calls."""
    tags = [_tag(notation, tool, is_strict=True) for tool in tools]
    group = _group(notation, tags, several)
    if notation.begin and notation.repeats:
        return sequence(const(notation.begin), group, const(notation.end))
    return group


def text_or_calls(notation: CallNotation, tools: Sequence[Tool], *, several: bool) -> Format:
    """Text, and calls where the model begins one; those of strict functions follow their schemas."""
    tags = [_tag(notation, tool, is_strict=bool(tool.function.strict)) for tool in tools]
    if notation.begin and notation.repeats:
        group = _group(notation, tags, several)
        tags, several = [tag(notation.begin, group, notation.end)], False
    return {
        "type": "triggered_tags",
        "triggers": [notation.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": not several,
    }


def harmony_call(tools: Sequence[Tool]) -> Format:
    """One message to a function; the stop token that ends it comes after the grammar."""
    return either(*(sequence(const(_harmony_head(tool)), _json(tool.function.parameters)) for tool in tools))


def harmony_answer(content: Format) -> Format:
    """The message that the user sees."""
    return sequence(const(f"{harmony.CHANNEL}final{harmony.MESSAGE}"), content)


def after_thinking(begin: str, end: str, what: Format, *, is_open: bool) -> Format:
    """`what` after thinking, which may be left out unless the prompt has begun it."""
    gap = {"type": "optional", "content": {"type": "regex", "pattern": r"\n{1,2}"}}
    if is_open:
        return sequence({**ANY_TEXT, "excludes": [end]}, const(end), gap, what)
    thought = tag(begin, ANY_TEXT, end)
    return sequence({"type": "optional", "content": sequence(thought, gap)}, what)


def constraint_format(params: StructuredOutputParams) -> Format | None:
    """A constraint as a part of a structural tag; None for grammars, which cannot be one."""
    if params.structural_tag is not None:
        return params.structural_tag.get("format") if isinstance(params.structural_tag, dict) else None
    if params.json is not None:
        return _json(json.loads(params.json) if isinstance(params.json, str) else params.json)
    if params.json_object:
        return _json({"type": "object"})
    if params.regex is not None:
        return {"type": "regex", "pattern": params.regex}
    return None if params.choice is None else either(*(const(choice) for choice in params.choice))


def as_constraint(form: Format) -> StructuredOutputParams:
    """A structural tag, as the engine takes it."""
    return StructuredOutputParams(structural_tag={"type": "structural_tag", "format": form})


def const(text: str) -> Format:
    """This text."""
    return {"type": "const_string", "value": text}


def sequence(*elements: Format) -> Format:
    """One after the other; texts of no length are left out."""
    kept = [element for element in elements if element != const("")]
    return kept[0] if len(kept) == 1 else {"type": "sequence", "elements": kept}


def either(*elements: Format) -> Format:
    """One of them."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def tag(begin: str, content: Format, end: str) -> Format:
    """`content` between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _group(notation: CallNotation, tags: list[Format], several: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": notation.separator,
        "at_least_one": True,
        "stop_after_first": not several,
        "max_tags": MAX_CALLS,
    }


def _tag(notation: CallNotation, tool: Tool, *, is_strict: bool) -> Format:
    begin, content, end = _call(notation, tool, is_strict)
    if notation.begin and not notation.repeats:
        begin, end = notation.begin + begin, end + notation.end
    return tag(begin, content, end)


def _call(notation: CallNotation, tool: Tool, is_strict: bool) -> tuple[str, Format, str]:
    """What begins a call, its arguments, what ends it."""
    name, schema = tool.function.name, tool.function.parameters
    if isinstance(notation.style, TaggedStyle):
        arguments = tagged_arguments(notation.style, schema) if is_strict else ANY_TEXT
        return notation.call + name + notation.after_name, arguments, notation.call_end
    arguments = _json(schema if is_strict else {"type": "object"})
    if isinstance(notation.style, BareKeysStyle):
        # JSON is read there too, and is what other grammars of the family ask for.
        bare = bare_keys_arguments(notation.style, schema or NO_ARGUMENTS) if is_strict else ANY_TEXT
        return notation.call + name, bare or arguments, notation.call_end
    if notation.style == "object":
        head = f'{notation.call}{{"{notation.name_key}": {json.dumps(name)}, "{notation.arguments_key}": '
        return head, arguments, "}" + notation.call_end
    if notation.is_numbered:
        number = {"type": "regex", "pattern": "[0-9]{1,2}"}
        return f"{notation.call}{name}:", sequence(number, const(notation.after_name), arguments), notation.call_end
    return notation.call + name + notation.after_name, arguments, notation.call_end


def _json(schema: Any) -> Format:
    if schema is None or schema == {}:
        schema = NO_ARGUMENTS
    elif isinstance(schema, dict) and "type" not in schema and "$ref" not in schema:
        schema = {"type": "object", **schema}
    return {"type": "json_schema", "json_schema": schema}


def _harmony_head(tool: Tool) -> str:
    name = tool.function.name
    return f"{harmony.CHANNEL}commentary to=functions.{name} {harmony.CONSTRAIN}json{harmony.MESSAGE}"
