"""The OpenAPI document: how routes that read their own body appear in it, and what this server's model allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from atom_core import EngineInfo

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
_CLIENT_ERRORS = {
    "400": "The request is wrong",
    "404": "No such model",
    "413": "Too large",
    "415": "Not JSON",
    "503": "Try again later",
}


def _error_response(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _ERROR}}}


def described(schema: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is `schema`."""
    body = schema.model_json_schema(ref_template="#/components/schemas/{model}")
    body = _inlined(body, body.pop("$defs", {}))
    required = body.get("required", ())
    body["properties"] = {
        name: value if name in required else _or_null(value) for name, value in body["properties"].items()
    }
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {status: _error_response(text) for status, text in _CLIENT_ERRORS.items()},
    }


FILE_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "A request in each line."},
                        "purpose": {"const": "batch"},
                    },
                }
            }
        },
    },
    "responses": {status: _error_response(text) for status, text in _CLIENT_ERRORS.items()},
}
"""The `openapi_extra` of the route that takes a file."""


def document_limits(app: FastAPI, info: EngineInfo) -> None:
    """Make the document of `app` tell the limits of its engine, and errors as they are sent."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            for operation in _operations(schema):
                operation["responses"].pop("422", None)  # which FastAPI adds, and nothing here answers
                operation["responses"]["default"] = _error_response("An error")
                body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                _set_maxima(body.get("schema", {}), info)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document


def _set_maxima(body: dict[str, Any], info: EngineInfo) -> None:
    lengths = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
    ids = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens")
    maxima: dict[str, int] = {"n": info.max_num_seqs}
    maxima |= dict.fromkeys(lengths, info.max_model_len - 1) | dict.fromkeys(ids, info.vocab_size - 1)
    for name, schema in body.get("properties", {}).items():
        for integer in _integers(schema) if name in maxima else ():
            integer["maximum"] = maxima[name]


def _integers(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of integers in a field, which may be null or a list."""
    if schema.get("type") == "integer":
        yield schema
    for part in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]:
        yield from _integers(part)


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A field given as null counts as left out."""
    if any(part.get("type") == "null" for part in schema.get("anyOf", ())):
        return schema
    about = {key: schema[key] for key in ("title", "description", "default") if key in schema}
    return {"anyOf": [{key: schema[key] for key in schema if key not in about}, {"type": "null"}], **about}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """`node` with references replaced by what they name: FastAPI collects only its own definitions."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    # A discriminator names what it tells apart by reference; the types say the same.
    return {key: _inlined(value, definitions) for key, value in node.items() if key != "discriminator"}
