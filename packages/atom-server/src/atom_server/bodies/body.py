"""From the bytes of a request to a checked schema: sizes, JSON, types and bounds, each with a sentence of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from atom_core.garbage import no_collection
from atom_server.bodies.client_names import SAME, Names
from atom_server.bodies.decoding_cost import DecodingCost, Floats
from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError

IGNORED_FIELDS = "x-atom-ignored-fields"
_LONGEST_QUOTE = 60
_MOST_FIELDS = 1024
# In bytes. The standard library tells more about bad JSON, but it takes tens of milliseconds for a megabyte.
_LONGEST_EXPLAINED = 2**17
# Not the encoder in C, which writes everything before it gives the first piece.
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_HEADER_SAFE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MOST_NAMED_FIELDS = 16
_DATA = re.compile(r"(data:[\w.+/-]+;base64,)[\w+/=-]+(?:\.\.\.)?")
_SUBJECT = re.compile(r"^\w+ should (?=be|have|match)")
_BYTE = re.compile(r"\(byte (\d+)\)")

Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body. Its size and the cost of decoding it are counted meanwhile.

    Raises:
        APIError: 413 past `max_bytes` or `DecodingCost`, 499 when the client goes away, or is too slow.
    """
    if _declared_length(request) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size, cost = [], 0, DecodingCost()
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            cost.add(chunk)
            chunks.append(chunk)
    except ClientDisconnect:
        raise APIError(CLIENT_CLOSED_REQUEST, "the client went away", code="client_closed_request") from None
    return b"".join(chunks)


def decode_json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; NaN, Infinity and numbers too large for a float are refused.

    Raises:
        APIError: 400 that says what is wrong and at which byte, or 413 for too many `Floats`.
    """
    try:
        # Hundreds of thousands of new lists would start the garbage collector again and again.
        with no_collection():
            value = msgspec.json.Decoder(float_hook=Floats()).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _explain_bad_json(body, str(error)) from None
    if not isinstance(value, dict):
        raise APIError(400, f"the body must be a JSON object, not {_json_type(value)}", code="invalid_json")
    return value


def parse_object(schema: type[Schema], values: dict[str, Any]) -> tuple[Schema, list[str]]:
    """Check `values` against `schema`: the result, and the names of fields that it does not know.

    A field given as null counts as left out.

    Raises:
        APIError: 400 that names the field at fault, or says that there are too many.
    """
    if len(values) > _MOST_FIELDS:
        raise APIError(400, f"the body has {len(values)} fields; at most {_MOST_FIELDS} are read")
    given = {name: value for name, value in values.items() if value is not None}
    try:
        with no_collection():
            body = schema.model_validate(given)
    except ValidationError as error:
        raise _explain_bad_field(error, given) from None
    known, also = schema.model_fields, getattr(schema, "also_accepted", frozenset())
    return body, [name for name in given if name not in known and name not in also]


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names ignored fields; no header if there are none."""
    if not names:
        return {}
    # Names come from the client: only harmless ones go into a header.
    safe = [name for name in names if _HEADER_SAFE.fullmatch(name)][:_MOST_NAMED_FIELDS]
    if len(safe) < len(names):
        safe.append("...")
    return {IGNORED_FIELDS: ", ".join(safe)}


def naming_ignored(headers: Mapping[str, str], fields: Sequence[str], names: Names = SAME) -> dict[str, str]:
    """`headers` with one more for these ignored fields, under the client's names."""
    if not fields:
        return dict(headers)
    earlier = [headers[IGNORED_FIELDS]] if IGNORED_FIELDS in headers else []
    return {**headers, IGNORED_FIELDS: ", ".join([*earlier, *(names.get(field, field) for field in fields)])}


def quoted(value: Any) -> str:
    """`value` as JSON, cut short for an error message. No more of it is written than is shown, and no data of URLs."""
    text = ""
    try:
        # The quotation marks make a cut text longer than what is shown.
        for piece in _ENCODER.iterencode(value[:_LONGEST_QUOTE] if isinstance(value, str) else value):
            text += piece
            if len(text) > _LONGEST_QUOTE:
                break
    except (TypeError, ValueError):
        text = str(value)
    text = text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
    return _DATA.sub(r"\1...", text)


def _too_large(max_bytes: int) -> APIError:
    return APIError(413, f"the body is larger than {max_bytes} bytes; --max-body-mb sets the limit")


def _declared_length(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _explain_bad_json(body: bytes, complaint: str) -> APIError:
    """Find the fault again, with the standard library's positions."""

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not a number in JSON")

    if not body.strip():
        return APIError(400, "the body is empty; send a JSON object", code="invalid_json")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return APIError(400, f"the body is not valid UTF-8: bad byte at offset {error.start}", code="invalid_utf8")
    if len(body) > _LONGEST_EXPLAINED:
        reason = complaint.removeprefix("JSON is malformed: ")
        return APIError(400, f"the body is not valid JSON: {reason}", code="invalid_json")
    try:
        json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        reason = f"{error.msg[0].lower()}{error.msg[1:]} at byte {offset}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        position = _BYTE.search(complaint)
        reason = f"{error}" + (f" at byte {position[1]}" if position else "")
    else:
        reason = "it holds half of a surrogate pair, or a number too large"
    return APIError(400, f"the body is not valid JSON: {reason}", code="invalid_json")


def _explain_bad_field(error: ValidationError, values: dict[str, Any]) -> APIError:
    problems = error.errors(include_url=False, include_context=False)
    problem = problems[0]
    param = _field_path(problem["loc"], values, is_missing=problem["type"] == "missing")
    if problem["type"] == "missing":
        message = f"'{param}' is required"
    else:
        text = _SUBJECT.sub("must ", problem["msg"].removeprefix("Value error, "))
        subject = f"'{param}' " if text.startswith("must ") else f"'{param}': " if param else ""
        message = f"{subject}{text}"
        if param:
            message += f"; got {quoted(problem['input'])}"
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more)"
    code = {"missing": "missing_required_parameter"}.get(problem["type"], "invalid_value")
    if problem["type"].endswith("_type"):
        code = "invalid_type"
    return APIError(400, message, param=param, code=code)


def _field_path(location: tuple[int | str, ...], values: Any, *, is_missing: bool) -> str | None:
    """``("messages", 0, "content")`` -> ``messages[0].content``.

    If a field may have several types, the location names the type too. Parts that are not in `values` are left out.
    """
    path = ""
    for place, part in enumerate(location, start=1):
        if isinstance(values, list) and isinstance(part, int):
            values = values[part]
        elif isinstance(values, dict) and str(part) in values:
            values = values[str(part)]
        elif not (is_missing and place == len(location)):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or None


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
