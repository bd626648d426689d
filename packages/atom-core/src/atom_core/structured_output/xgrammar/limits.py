"""What xgrammar (0.2.8) enforces exactly, and what it is slow at; each line here was tried.

Whatever a schema says that is not known to be enforced is an objection. xgrammar ignores many keywords in silence
(uniqueItems, contains, not, if, dependentRequired, what stands beside anyOf, enum or $ref ...), lets control characters
into strings of bounded length, and reads patterns its own way.
"""

from __future__ import annotations

from typing import Any

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints import structural_tag as st
from atom_core.structured_output.constraints.grammar import json_value, kind_of
from atom_core.structured_output.constraints.work import num_objects

ANNOTATIONS = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"} | {
    "deprecated",
    "readOnly",
    "writeOnly",
}
# Keywords that are enforced beside a "type", for each type.
KEYWORDS = {
    "string": frozenset(),  # with minLength or maxLength it lets control characters into strings
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
# What may be named in an objection. Objections are logged and remembered: nothing of a client's own gets into one.
NAMED = frozenset().union(*KEYWORDS.values()) | {
    *("minLength", "maxLength", "pattern", "format", "multipleOf", "const", "enum", "type", "$ref", "$anchor"),
    *("prefixItems", "additionalItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("contentEncoding", "contentMediaType", "contentSchema", "nullable"),
}
REFERENCES = ("#/$defs/", "#/definitions/")
# Above this a bounded repeat takes milliseconds for each mask, or a second to compile.
MAX_REPEATS = 8
# It compiles in the engine, where nothing can stop it: up to 20 ms for each object of a schema.
MAX_OBJECTS = 128


def why_wrong(params: StructuredOutputParams) -> str | None:
    """Why xgrammar may not follow a constraint that passed `check_limits`: it would not enforce all of it, or compile
    it for long. None if nothing speaks against it."""
    match kind_of(params):
        case "json":
            schema = json_value("json", params.json)
            return _size_objection(schema) or _schema_objection(schema)
        case "regex":
            return "reads patterns its own way"
        case "grammar":
            return "sets no limit to the work that a grammar makes"
        case "structural_tag":
            tag = json_value("structural_tag", params.structural_tag)
            return _size_objection(tag) or _in_tag(params, _schema_objection, "reads patterns its own way")
        case _:
            return None


def why_slow(params: StructuredOutputParams) -> str | None:
    """What makes masks or compiling slow in a constraint that xgrammar enforces; None if nothing does."""
    match kind_of(params):
        case "json":
            return _slow_part(json_value("json", params.json))
        case "structural_tag":
            return _in_tag(params, _slow_part, None)
        case _:
            return None


def _in_tag(params: StructuredOutputParams, judge: Any, of_pattern: str | None) -> str | None:
    format_ = st.format_of(json_value("structural_tag", params.structural_tag))
    found = (_in_node(node, judge, of_pattern) for node in st.nodes_of_any(format_))
    return next((objection for objection in found if objection is not None), None)


def _in_node(node: dict[str, Any], judge: Any, of_pattern: str | None) -> str | None:
    match node.get("type"):
        case "json_schema" | "qwen_xml_parameter":
            return judge(node.get("json_schema"))
        case "regex" | "grammar":
            return of_pattern
        case _:
            return None


def _size_objection(value: Any) -> str | None:
    return f"compiles more than {MAX_OBJECTS} objects for long" if num_objects(value) > MAX_OBJECTS else None


def _schema_objection(schema: Any) -> str | None:
    """The first thing in a schema that is not known to be enforced."""
    if schema is True or schema == {}:
        return None
    if not isinstance(schema, dict):
        return "cannot follow a schema that is false"
    said = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
    definitions = [*_values(schema.get("$defs")), *_values(schema.get("definitions"))]
    children: list[Any] = [*definitions]
    if not said:
        pass
    elif "$ref" in said:
        if len(said) > 1 or not str(said["$ref"]).startswith(REFERENCES):
            return "ignores what stands beside $ref, and references of other forms"
    elif "anyOf" in said:
        if len(said) > 1 or not isinstance(said["anyOf"], list):
            return "ignores what stands beside anyOf"
        children += said["anyOf"]
    elif "enum" in said or "const" in said:
        values = said["enum"] if "enum" in said else [said["const"]]
        if len(said) > 1 or not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
            return "ignores what stands beside enum, and lays out objects in it its own way"
    else:
        objection = _typed_objection(said)
        if objection is not None:
            return objection
        children += _values(said.get("properties"))
        children += [said[name] for name in ("items", "additionalProperties") if said.get(name) not in (None, False)]
    return next((found for child in children if (found := _schema_objection(child)) is not None), None)


def _typed_objection(said: dict[str, Any]) -> str | None:
    kinds = said.get("type")
    if not isinstance(kinds, str):
        return None if isinstance(kinds, list) and said.keys() == {"type"} else "ignores keywords without one type"
    unknown = sorted(said.keys() - {"type"} - KEYWORDS.get(kinds, frozenset()))
    if unknown:
        keyword = unknown[0] if unknown[0] in NAMED else "a keyword that JSON Schema has not"
        return f"is not known to enforce {keyword} of {f'type {kinds}' if kinds in KEYWORDS else 'an unknown type'}"
    required, properties = said.get("required") or [], said.get("properties") or {}
    if not isinstance(required, list) or not isinstance(properties, dict):
        return "is not known to refuse keywords of a wrong type"
    missing = [name for name in required if not isinstance(name, str) or name not in properties]
    return "ignores required properties that are not declared" if missing else None


def _slow_part(value: Any) -> str | None:
    if isinstance(value, dict):
        for name in ("maxItems", "minItems"):
            if isinstance(value.get(name), int) and value[name] > MAX_REPEATS:
                return f"is slow at {name} above {MAX_REPEATS}"
    return next((found for child in _values(value) if (found := _slow_part(child)) is not None), None)


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
