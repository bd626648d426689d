"""The grammar of arguments between tags: every parameter in the order of the schema, optional ones left out at will."""

from __future__ import annotations

from typing import Any

from atom_server.output.notation import TaggedStyle
from atom_server.output.schema_types import property_schema, property_types, resolved

# What a schema of parameters may say beside `properties`; anything else speaks of several parameters at once.
_PLAIN_KEYS = frozenset(
    [
        *("type", "properties", "required", "additionalProperties", "description", "title", "strict", "default"),
        *("examples", "$defs", "definitions", "$schema", "$id", "$comment", "$ref"),
    ]
)
_LENGTHS = frozenset(("minLength", "maxLength"))
_STRING_RULES = frozenset(("pattern", "format", "contentEncoding", "allOf", "anyOf", "oneOf", "not", "if"))


def can_be_tagged(style: TaggedStyle, schema: Any) -> bool:
    """Whether arguments in tags can be held to `schema`; where not, they have to be written as JSON."""
    if not has_plain_properties(schema):
        return False
    names = resolved(schema or {}, schema or {}).get("properties", {})
    end = style.after_value.strip()
    return all(property_types(schema, name) != {"string"} or text_value(end, schema, name) for name in names)


def has_plain_properties(schema: Any) -> bool:
    """Whether an object's properties are all that its schema speaks of."""
    root = resolved(schema or {}, schema or {})
    properties, required = root.get("properties", {}), root.get("required", [])
    if set(root) - _PLAIN_KEYS or not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if any(not isinstance(name, str) or name not in properties for name in required):
        return False
    return bool(properties) or root.get("additionalProperties") is False or not root


def text_value(end: str, schema: Any, name: str) -> dict[str, Any] | None:
    """The bare text of a string property before `end`; None where its schema asks for more than can be held."""
    node = _node(schema, name)
    texts = [node["const"]] if "const" in node else node.get("enum")
    if _STRING_RULES.intersection(node) or not isinstance(texts, list | None):
        return None
    if texts is not None:
        if not texts or not all(isinstance(text, str) and end not in text for text in texts):
            return None
        choices = [{"type": "const_string", "value": text} for text in texts]
        return choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
    if _LENGTHS.intersection(node):
        # No regular expression counts characters and excludes a mark at once: so none that could begin one.
        longest = node.get("maxLength", "")
        return {"type": "regex", "pattern": f"[^{end[0]}]{{{node.get('minLength', 0)},{longest}}}"}
    return {"type": "any_text", "excludes": [end]}


def tagged_arguments(style: TaggedStyle, schema: Any) -> dict[str, Any]:
    """The arguments of a schema that `can_be_tagged`."""
    root = resolved(schema or {}, schema or {})
    required = set(root.get("required", ()))
    elements: list[dict[str, Any]] = []
    for name in root.get("properties", {}):
        parameter = _parameter(style, schema, name)
        elements.append(parameter if name in required else {"type": "optional", "content": parameter})
    return {"type": "sequence", "elements": elements} if elements else {"type": "const_string", "value": ""}


def _parameter(style: TaggedStyle, schema: Any, name: str) -> dict[str, Any]:
    line_break = "\n" if style.after_value.startswith("\n") else ""
    is_text = style.text_value and property_types(schema, name) == {"string"}
    return {
        "type": "tag",
        "begin": style.key + name + style.after_key + (style.text_value if is_text else style.value) + line_break,
        "content": _value(style, schema, name),
        "end": style.after_value,
    }


def _value(style: TaggedStyle, schema: Any, name: str) -> dict[str, Any]:
    """Bare text for strings, JSON for everything else."""
    text = text_value(style.after_value.strip(), schema, name) if property_types(schema, name) == {"string"} else None
    return text or {"type": "json_schema", "json_schema": property_schema(schema, name)}


def _node(schema: Any, name: str) -> Any:
    return resolved(resolved(schema, schema)["properties"][name], schema)
