"""How routes that read their own body appear in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_CLIENT_ERRORS = {"400": "The request is wrong", "404": "No such model", "413": "Too large", "503": "Try again later"}


def described(schema: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is `schema`."""
    body = schema.model_json_schema(ref_template="#/components/schemas/{model}")
    body = _inlined(body, body.pop("$defs", {}))
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for status, text in _CLIENT_ERRORS.items()
    }
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": errors,
    }


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """`node` with references replaced by what they name: FastAPI collects only its own definitions."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}
