"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, whatever went wrong."""

from __future__ import annotations

import logging

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from atom_core import EngineAsleepError, EngineBusyError, EngineDeadError, InvalidRequestError, ProfilerError
from atom_core.errors import AdapterError

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
RETRY_AFTER = {"retry-after": "1"}

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable"}
_MESSAGE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
MESSAGES_PATH = "/v1/messages"
_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    500: "internal_error",
}


class APIError(Exception):
    """An answer other than success.

    Attributes:
        status: HTTP status.
        param: the request field at fault, e.g. "messages[0].content"; None where there is no single one.
        code: machine-readable kind, e.g. "model_not_found".
        headers: what the answer has beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or _CODES.get(status, "invalid_value")
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """The kind of error in OpenAI's words."""
        return _TYPES.get(self.status, "invalid_request_error")

    def body(self) -> bytes:
        """The JSON to send."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def message_body(self) -> bytes:
        """The JSON for clients of the Messages API; it has OpenAI's fields beside Anthropic's."""
        kind = _MESSAGE_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        return msgspec.json.encode({"type": "error", "error": error})

    def response(self, path: str = "") -> Response:
        """The whole answer, as clients of `path` expect it."""
        body = self.message_body() if path.startswith(MESSAGES_PATH) else self.body()
        return Response(body, self.status, headers=self.headers, media_type="application/json")


def engine_dead(reason: object) -> APIError:
    """The engine no longer works: no request can be served until the server is started again."""
    return APIError(503, f"the engine stopped working: {reason}", code="engine_dead", headers=RETRY_AFTER)


def shutting_down() -> APIError:
    """The server takes no new work, or gave up what it could not finish in time."""
    return APIError(
        503, "the server is shutting down; send the request again", code="shutting_down", headers=RETRY_AFTER
    )


def paused() -> APIError:
    """An administrator paused the engine: requests wait."""
    return APIError(503, "the engine is paused: POST /resume lets it go on", code="paused", headers=RETRY_AFTER)


def sleeping() -> APIError:
    """An administrator put the engine to sleep."""
    return APIError(503, "the engine sleeps: POST /wake_up wakes it up", code="sleeping", headers=RETRY_AFTER)


def aborted() -> APIError:
    """An administrator ended the request. Clients do not retry this status by themselves."""
    return APIError(403, "the server's administrator ended this request", code="aborted")


def unsupported(message: str, param: str) -> APIError:
    """A feature that was asked for and is not there."""
    return APIError(400, message, param=param, code="unsupported_parameter")


def as_api_error(error: Exception) -> APIError:
    """What to tell the client about any exception."""
    match error:
        case APIError():
            return error
        case InvalidRequestError(code="queue_full"):
            return APIError(503, error.message, param=error.param, code=error.code, headers=RETRY_AFTER)
        case InvalidRequestError():
            return APIError(400, error.message, param=error.param, code=error.code)
        case AdapterError():
            return APIError(400, str(error), code="invalid_adapter")
        case EngineAsleepError():
            return sleeping()
        case EngineBusyError():
            return APIError(409, str(error), code="engine_busy")
        case EngineDeadError():
            return engine_dead(error)
        case ProfilerError():
            return APIError(409, str(error), code="profiler_not_ready")
        case RequestValidationError():
            return _bad_parameter(error)
        case HTTPException(status_code=404):
            return APIError(404, "there is no such path here; /docs lists those there are")
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow", "another one")
            return APIError(405, f"this method does not work here; use {allowed}", headers={"allow": allowed})
        case HTTPException():
            return APIError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    logger.error("a request failed unexpectedly", exc_info=error)
    return APIError(500, "internal error; the server's log has the details")


def _bad_parameter(error: RequestValidationError) -> APIError:
    """The error for a bad path or query; bodies are checked by `atom_server.bodies.body`."""
    problem = error.errors()[0]
    name = str(problem["loc"][-1]) if problem["loc"] else None
    message = str(problem["msg"]).replace("Input should", "must")
    return APIError(400, f"'{name}' {message}" if name else message, param=name)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` leave in OpenAI's shape."""

    async def answer(request: Request, error: Exception) -> Response:
        return as_api_error(error).response(request.url.path)

    of_engine = (AdapterError, InvalidRequestError, EngineAsleepError, EngineBusyError, EngineDeadError, ProfilerError)
    for kind in (APIError, *of_engine, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
