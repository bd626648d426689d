"""What a response template says of writing: the notation of its calls and the marks around reasoning and answers.

A template only says how text is read. What is found here has been written and read again with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atom_server.output.notation import BareKeysStyle, CallNotation, TaggedStyle
from atom_server.output.parts import Assembled, assemble
from atom_server.output.response_template.calls import CallReading, reading_of
from atom_server.output.response_template.marks import Mark
from atom_server.output.response_template.parser import TemplateParser
from atom_server.output.response_template.pattern_text import Group, Piece, pieces_of
from atom_server.output.response_template.template import Field, ResponseTemplate

_PROBE = {"city": "a b", "days": 3}
_SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_NAMES = ("probe_one", "probe_two")


def notation_of(template: ResponseTemplate, family: CallNotation | None) -> CallNotation | None:
    """How calls are written so that `template` reads them; None where nothing is found.

    Args:
        family: taken where the template reads it: it knows the white space that the model is used to.
    """
    field = template.field_of("calls")
    derived = None if field is None else _derived(field)
    return next((found for found in (family, derived) if found and _reads_calls(template, found)), None)


def reasoning_marks(template: ResponseTemplate) -> tuple[str, str] | None:
    """What begins and ends reasoning; nothing begins it where every reply begins with it."""
    field = template.field_of("reasoning")
    end = None if field is None else _text(field.end)
    if field is None or not end:
        return None
    begins = [text for text in (_text(field.begin), "") if text is not None]
    return next(((begin, end) for begin in begins if _read(template, f"{begin}x{end}").reasoning == "x"), None)


def answer_marks(template: ResponseTemplate) -> tuple[str, str] | None:
    """What has to stand around an answer, if anything; None where it cannot be told."""
    field = template.field_of("content")
    if field is None or field.begin is None:
        return ("", "") if template.leftover is not None else None
    marks = _marks(field)
    return marks if marks and _read(template, f"{marks[0]}x{marks[1]}").content == "x" else None


def written_calls(notation: CallNotation, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Calls in a notation."""
    each = [_written_call(notation, name, arguments) for name, arguments in calls]
    if notation.begin and not notation.repeats:
        return notation.separator.join(notation.begin + text + notation.end for text in each)
    return notation.begin + notation.separator.join(each) + notation.end


def _written_call(notation: CallNotation, name: str, arguments: dict[str, Any]) -> str:
    style, body = notation.style, json.dumps(arguments)
    if style == "object":
        body = json.dumps({notation.name_key: name, notation.arguments_key: arguments})
        return notation.call + body + notation.call_end
    if isinstance(style, BareKeysStyle):
        quotes = {key: style.quote if isinstance(value, str) else "" for key, value in arguments.items()}
        body = "{" + ",".join(f"{key}:{quotes[key]}{value}{quotes[key]}" for key, value in arguments.items()) + "}"
    elif isinstance(style, TaggedStyle):
        body = "".join(_written_tag(style, key, value) for key, value in arguments.items())
    number = ":0" if notation.is_numbered else ""
    return notation.call + name + number + notation.after_name + body + notation.call_end


def _written_tag(style: TaggedStyle, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    line_break = "\n" if style.after_value.startswith("\n") else ""
    mark = style.text_value if is_text and style.text_value else style.value
    return style.key + key + style.after_key + mark + line_break + str(value) + style.after_value


def _derived(field: Field) -> CallNotation | None:
    begin, end, reading = _pieces(field.begin), _text(field.end), reading_of(field)
    if begin is None or end is None or reading is None:
        return None
    match begin:
        case [str(mark)] if reading.style == "object":
            return CallNotation(mark, end, separator="", name_key=reading.name, arguments_key=reading.arguments)
        case [str(mark)] if reading.style == "list":
            names = (reading.name, reading.arguments)
            return CallNotation("", "", "", f"{mark}[", f"]{end}", ", ", name_key=names[0], arguments_key=names[1])
        case [str(mark), Group(name), *after] if name == reading.name:
            return _named(field, reading, mark, str(*after), end)
    return None


def _named(field: Field, reading: CallReading, mark: str, after_name: str, end: str) -> CallNotation | None:
    if reading.style != "tags":
        style = BareKeysStyle(reading.quote) if reading.style == "bare" else "json"
        return CallNotation(mark, end, after_name, separator="", style=style)
    match pieces_of(field.content_args["tag_pattern"]):
        case [str(before), Group(), str(between), Group(), str(last)]:
            return CallNotation(mark, end, after_name, separator="", style=TaggedStyle(before, between, "", last))
    return None


def _marks(field: Field) -> tuple[str, str] | None:
    begin, end = _text(field.begin), _text(field.end)
    return (begin, end) if begin and end else None


def _text(mark: Mark | None) -> str | None:
    match _pieces(mark):
        case [str(text)]:
            return text
    return None


def _pieces(mark: Mark | None) -> list[Piece] | None:
    if mark is None:
        return None
    return [mark.literals[0]] if mark.literals else pieces_of(mark.pattern.pattern)


def _reads_calls(template: ResponseTemplate, notation: CallNotation) -> bool:
    if not notation.trigger:
        return False
    found = _read(template, written_calls(notation, [(name, _PROBE) for name in _NAMES]))
    try:
        calls = [(name, json.loads(arguments)) for name, arguments in found.calls]
    except ValueError:
        return False
    return (found.content, calls) == ("", [(name, _PROBE) for name in _NAMES])


def _read(template: ResponseTemplate, text: str) -> Assembled:
    parser = TemplateParser(template, "", dict.fromkeys(_NAMES, _SCHEMA))
    return assemble(parser.feed(text) + parser.finish())
