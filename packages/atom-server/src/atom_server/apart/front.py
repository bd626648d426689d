"""`Front`: sends a prompt to one server and its decode to another, and passes the answer on as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atom_core.seldom import SeldomWarning
from atom_server.apart.exchange import Exchange, Headers, ServerLostError
from atom_server.apart.options import RouteOptions, listed
from atom_server.apart.servers import Servers
from atom_server.bodies.body import decode_json_object, read_body
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import RETRY_AFTER, APIError

logger = logging.getLogger(__name__)

# Requests that have a prompt which another server can compute.
SPLIT_PATHS = frozenset(("/v1/completions", "/v1/chat/completions"))
# What a prompt does not depend on, and its computing need not know.
_OF_DECODE = (
    "stream_options",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "logprob_token_ids",
    "return_token_ids",
    "response_format",
    "structured_outputs",
)


class Front:
    """An ASGI app.

    A prompt goes to the prefill server with least to do, which keeps its blocks; then the request goes to a decode
    server together with what that one needs to fetch them. Whatever goes wrong with the first half, the decode server
    gets the request as it came, and computes the prompt itself.

    Args:
        prefill, decode: the servers.
        prefill_timeout: seconds after which a prompt is not waited for any longer.
        max_body_bytes: larger bodies are refused.
    """

    def __init__(self, prefill: Servers, decode: Servers, *, prefill_timeout: float, max_body_bytes: int) -> None:
        self._prefill, self._decode = prefill, decode
        self._timeout, self._max_body_bytes = prefill_timeout, max_body_bytes
        self._warn = SeldomWarning(logger)

    @classmethod
    def of(cls, options: RouteOptions) -> Front:
        """The front that these options ask for."""
        return cls(
            Servers(listed(options.prefill)),
            Servers(listed(options.decode)),
            prefill_timeout=options.prefill_timeout,
            max_body_bytes=int(options.max_body_mb * 2**20),
        )

    def __str__(self) -> str:
        prefill, decode = (", ".join(server.name for server in each.all) for each in (self._prefill, self._decode))
        return f"prompts are computed by {prefill}, and {decode} goes on from them"

    async def watch(self, options: RouteOptions) -> None:
        """Keep asking the servers how they are."""
        watches = (
            each.watch(options.health_interval, options.health_timeout) for each in (self._prefill, self._decode)
        )
        await asyncio.gather(*watches)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            return await self._health()(scope, receive, send)
        request = Request(scope, receive)
        body = await read_body(request, self._max_body_bytes)
        await until_disconnect(request, self._serve(request, body, send))

    def _health(self) -> Response:
        counts = {"prefill": self._prefill.num_up, "decode": self._decode.num_up}
        status = 200 if self._decode.num_up else 503
        return Response(msgspec.json.encode(counts), status, media_type="application/json")

    async def _serve(self, request: Request, body: bytes, send: Send) -> None:
        if request.method == "POST" and request.url.path in SPLIT_PATHS:
            body = await self._with_prompt(request, body)
        servers = list(self._decode.in_turn())
        for server in servers:
            try:
                async with server.asked(request.method, _target(request), _headers(request), body) as answer:
                    if answer.status == 503 and server is not servers[-1]:
                        continue  # it shuts down, or its engine starts anew
                    return await _pass_on(answer, send)
            except ServerLostError as error:
                server.lose(error)
        raise APIError(503, "no decode server answers; send the request again", code="no_server", headers=RETRY_AFTER)

    async def _with_prompt(self, request: Request, body: bytes) -> bytes:
        """The body for the decode server: with what it needs to fetch the prompt, where that was computed."""
        fields = decode_json_object(body)
        fields.pop("kv_transfer_params", None)  # it is this front that says who computes what
        params = await self._compute_prompt(request, fields) if _can_be_split(fields) else None
        return msgspec.json.encode(fields if params is None else fields | {"kv_transfer_params": params})

    async def _compute_prompt(self, request: Request, fields: dict[str, Any]) -> Any:
        """Let a server compute the prompt: what another needs to go on from it; None where that did not work."""
        asked = {name: value for name, value in fields.items() if name not in _OF_DECODE}
        asked |= {"max_tokens": 1, "n": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        for server in self._prefill.in_turn():
            try:
                async with (
                    asyncio.timeout(self._timeout),
                    server.asked("POST", _target(request), _headers(request), msgspec.json.encode(asked)) as answer,
                ):
                    content = await answer.whole()
            except ServerLostError as error:
                server.lose(error)
                continue
            except TimeoutError:
                self._warn(f"{server.name} did not compute a prompt within {self._timeout:g} s")
                return None
            if answer.status == 200:
                return msgspec.json.decode(content).get("kv_transfer_params")
            if answer.status >= 500 or answer.status == 429:
                self._warn(f"{server.name} did not compute a prompt: {answer.status} {content[:200]!r}")
            return None  # what is wrong with the request the decode server says as well
        return None


async def _pass_on(answer: Exchange, send: Send) -> None:
    """Pass an answer on as it comes. Where the server goes away a stream ends with an error; all else is cut off."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    is_stream = any(
        name == b"content-type" and value.startswith(b"text/event-stream") for name, value in answer.headers
    )
    try:
        async for chunk in answer.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except ServerLostError as error:
        failure = APIError(503, f"the answer has no end: {error}", code="engine_dead")
        if not is_stream:
            raise failure from None
        await send({"type": "http.response.body", "body": _last_words(failure), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _last_words(failure: APIError) -> bytes:
    """As events; what came before may have been cut off within one."""
    return b"\n\ndata: " + failure.body() + b"\n\ndata: [DONE]\n\n"


def _can_be_split(fields: Mapping[str, Any]) -> bool:
    """Whether another server's blocks are of use: for one prompt whose own log-probabilities nobody wants."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return False
    wants_prompt = fields.get("prompt_logprobs") is not None or (
        fields.get("echo") and fields.get("logprobs") is not None
    )
    return not wants_prompt and fields.get("max_tokens") != 0


def _target(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    path = request.scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _headers(request: Request) -> Headers:
    return request.headers.raw
