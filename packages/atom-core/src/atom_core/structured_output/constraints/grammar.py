"""Constraints of requests: which kind, of the right shape, within limits of size and depth."""

from __future__ import annotations

from typing import Any

import msgspec

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.work import too_much_work

MAX_BYTES = 65_536
MAX_REGEX_LENGTH = 8_192
MAX_DEPTH = 64
MAX_CHOICES = 1_024
MAX_TAGS = 128
LONGEST_MESSAGE = 300

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class GrammarError(ValueError):
    """A constraint that cannot be followed: malformed, too large, or of a kind that is not supported."""


def kind_of(params: StructuredOutputParams) -> str:
    """The one kind of constraint that `params` names.

    Raises:
        GrammarError: none, or more than one.
    """
    given = [name for name in KINDS if getattr(params, name) not in (None, False)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise GrammarError(f"exactly one of {', '.join(KINDS)} must be given; got {found}")
    return given[0]


def check_limits(params: StructuredOutputParams) -> None:
    """Raise GrammarError unless `params` names one constraint of the right type and a sane size."""
    if not isinstance(params, StructuredOutputParams):
        raise GrammarError(f"must be StructuredOutputParams, not {type(params).__name__}")
    kind = kind_of(params)
    value = getattr(params, kind)
    if kind in ("regex", "grammar") and (not isinstance(value, str) or not value):
        raise GrammarError(f"{kind} must be a text that is not empty")
    if kind == "regex" and len(value) > MAX_REGEX_LENGTH:
        raise GrammarError(f"regex has {len(value)} characters; at most {MAX_REGEX_LENGTH} are allowed")
    if kind == "json_object" and value is not True:
        raise GrammarError("json_object must be true")
    if kind == "choice" and not (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= MAX_CHOICES
        and all(isinstance(item, str) and item for item in value)
    ):
        raise GrammarError(f"choice must be a list of 1 to {MAX_CHOICES} texts that are not empty")
    if kind in ("json", "structural_tag"):
        value = json_value(kind, value)
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise GrammarError(f"{kind} cannot be written as JSON: {error}") from None
    if size > MAX_BYTES:
        raise GrammarError(f"{kind} has {size} bytes; at most {MAX_BYTES} are allowed")
    if kind in ("json", "structural_tag"):
        _check_depth(kind, value)
    if (problem := too_much_work(kind, value)) is not None:
        raise GrammarError(f"{kind} takes too much work: {problem}")


def json_value(kind: str, value: Any) -> Any:
    """A schema or a structural tag as an object, given as one or as text; raises GrammarError for anything else."""
    if isinstance(value, str):
        if len(value) > MAX_BYTES:
            raise GrammarError(f"{kind} has {len(value)} characters; at most {MAX_BYTES} bytes are allowed")
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise GrammarError(f"{kind} is a text that is not JSON: {error}") from None
    if not isinstance(value, dict | bool) or (kind == "structural_tag" and not isinstance(value, dict)):
        raise GrammarError(f"{kind} must be a JSON object, or the text of one; got {type(value).__name__}")
    return value


def _check_depth(kind: str, value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise GrammarError(f"{kind} is nested deeper than {MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def one_line(text: str) -> str:
    """A library's message, short enough to pass on."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
