"""The grammar of objects with bare keys, in the order of the keys' names, as the templates of Gemma write them."""

from __future__ import annotations

from typing import Any

from atom_server.output.notation import BareKeysStyle
from atom_server.output.schema_types import property_schema, property_types, resolved
from atom_server.output.tagged_grammar import has_plain_properties, text_value

_MOST_OPTIONAL = 12
_SCALARS = frozenset(("integer", "number", "boolean", "null"))


def bare_keys_arguments(style: BareKeysStyle, schema: Any) -> dict[str, Any] | None:
    """The arguments of a function; None where its schema says what only a grammar of JSON can hold."""
    if not has_plain_properties(schema):
        return None
    required = set(resolved(schema, schema).get("required", ()))
    members: list[tuple[dict[str, Any], bool]] = []
    for name in sorted(resolved(schema, schema).get("properties", {}), key=lambda name: (name.lower(), name)):
        value = _value(style, schema, name)
        if value is None or not name.isidentifier():
            return None
        members.append((_sequence(_const(name + ":"), value), name in required))
    if sum(not is_required for _, is_required in members) > _MOST_OPTIONAL:
        return None
    return _sequence(_const("{"), _joined(members), _const("}")) if members else _const("{}")


def _value(style: BareKeysStyle, schema: Any, name: str) -> dict[str, Any] | None:
    types = property_types(schema, name)
    if types == {"string"}:
        text = text_value(style.quote, schema, name)
        return None if text is None else _sequence(_const(style.quote), text, _const(style.quote))
    if not types or types - _SCALARS:
        return None
    return {"type": "json_schema", "json_schema": property_schema(schema, name)}


def _joined(members: list[tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """The members with commas between them: one alternative for each that may be the first."""
    ways: list[dict[str, Any]] = []
    for index, (first, is_required) in enumerate(members):
        later = [_after_comma(member, needed) for member, needed in members[index + 1 :]]
        ways.append(_sequence(first, *later))
        if is_required:
            return {"type": "or", "elements": ways} if len(ways) > 1 else ways[0]
    return {"type": "optional", "content": {"type": "or", "elements": ways} if len(ways) > 1 else ways[0]}


def _after_comma(member: dict[str, Any], is_required: bool) -> dict[str, Any]:
    joined = _sequence(_const(","), member)
    return joined if is_required else {"type": "optional", "content": joined}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}
