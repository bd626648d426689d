"""`accepted`: the first steps of every route with a body."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import Request

from atom_server.access.guard import caller_of
from atom_server.bodies.body import decode_json_object, ignored_header, parse_object, read_body
from atom_server.schemas.fields.strict_model import RequestOfModel
from atom_server.state import ServerState, server_state

Schema = TypeVar("Schema", bound=RequestOfModel)
# Bytes of a body whose decoding, checking and use may each take milliseconds: others get their turn in between.
_LONG = 2**16


async def accepted(
    request: Request, schema: type[Schema], *, generates: bool = True
) -> tuple[ServerState, Schema, dict[str, str]]:
    """The server's state, the checked body, and the headers that name what was ignored of it.

    Args:
        generates: refuse the request while the server is going down or its engine is gone.

    Raises:
        APIError: 400, 404, 413, 429, 499 or 503; see `read_body`, `decode_json_object`, `parse_object`,
            `RateLimits` and `ServerState`.
    """
    state = server_state(request)
    if generates:
        state.check_takes_requests()
    state.rates.take_request(caller_of(request))
    content = await read_body(request, state.options.max_body_bytes)
    await _let_others(content)
    values = decode_json_object(content)
    await _let_others(content)
    body, ignored = parse_object(schema, values)
    await _let_others(content)
    state.check_model(body.model)
    return state, body, ignored_header(ignored)


async def _let_others(content: bytes) -> None:
    if len(content) > _LONG:
        await asyncio.sleep(0)
