"""Random function schemas for tests: nested objects, enumerations, bounded strings and arrays, references, options."""

from __future__ import annotations

import random
from typing import Any


def make_tool(source: random.Random, name: str = "f") -> dict[str, Any]:
    """A function whose every value is short, so that any output ends soon."""
    properties = {f"p{index}": _property(source, depth=2) for index in range(source.randint(1, 4))}
    required = [key for key in properties if source.random() < 0.6]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": {"size": {"enum": ["small", "large"]}, "flag": {"type": "boolean"}},
    }
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def _property(source: random.Random, depth: int) -> dict[str, Any]:
    leaves = [
        {"type": "string", "maxLength": source.randint(1, 5)},
        {"type": "string", "enum": ["red", "blue", "<green>"][: source.randint(1, 3)]},
        {"enum": ["a", "b", 3, None]},
        {"type": "boolean"},
        {"type": "integer", "minimum": -9, "maximum": source.randint(0, 99)},
        {"type": ["string", "null"], "maxLength": 3},
        {"const": "fixed"},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"$ref": "#/$defs/size"},
    ]
    if depth == 0 or source.random() < 0.6:
        return source.choice(leaves)
    if source.random() < 0.5:
        items = source.choice([{"$ref": "#/$defs/flag"}, _property(source, depth - 1)])
        return {"type": "array", "items": items, "minItems": source.randint(0, 1), "maxItems": 2}
    inner = {f"q{index}": _property(source, depth - 1) for index in range(source.randint(1, 2))}
    return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}
