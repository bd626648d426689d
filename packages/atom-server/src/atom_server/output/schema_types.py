"""What a JSON schema says of a function's parameters: their types, and where references in it lead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MOST_REFERENCES = 16
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def property_types(schema: Any, name: str) -> frozenset[str]:
    """JSON types that the value of a property may have; none means any. A number may be an integer."""
    root = resolved(schema, schema)
    properties = root.get("properties")
    declared = properties.get(name) if isinstance(properties, Mapping) else None
    types = _types(declared, schema, _MOST_REFERENCES)
    return types | {"integer"} if "number" in types else types


def has_property(schema: Any, name: str) -> bool:
    """Whether a schema speaks of a property."""
    properties = resolved(schema, schema).get("properties")
    return isinstance(properties, Mapping) and name in properties


def resolved(node: Any, root: Any) -> Mapping[str, Any]:
    """`node`, or what its reference leads to; an empty schema where it leads nowhere."""
    for _ in range(_MOST_REFERENCES):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if reference is None:
            break
        node = _follow(reference, root)
    return node if isinstance(node, Mapping) else {}


def moved(schema: Any, to: str) -> Any:
    """`schema` with its references to itself pointing to where it now is."""
    if isinstance(schema, list):
        return [moved(entry, to) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: moved(value, to) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        result["$ref"] = to + reference[1:]
    return result


def property_schema(schema: Any, name: str) -> dict[str, Any]:
    """The schema of one property alone, with everything that it refers to."""
    node = resolved(schema, schema)["properties"][name]
    if "$ref" not in json.dumps(node):
        return node
    return {"$defs": {"all": moved(schema, "#/$defs/all")}, **moved(node, "#/$defs/all")}


def _types(node: Any, root: Any, depth: int) -> frozenset[str]:
    node = resolved(node, root)
    declared = node.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(entry for entry in declared if isinstance(entry, str))
    if isinstance(node.get("enum"), list):
        return frozenset(_SCALARS.get(type(value), "null") for value in node["enum"])
    if "const" in node:
        return frozenset((_SCALARS.get(type(node["const"]), "null"),))
    for name in ("anyOf", "oneOf"):
        if isinstance(node.get(name), list) and depth > 0:
            each = [_types(entry, root, depth - 1) for entry in node[name]]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()


def _follow(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
