"""`WebPageGuard`: a web page in somebody's browser must not use a server that only that person should reach.

A browser lets any page send some requests to any address: plain POSTs without asking first, and everything to a host
name of the page's own that suddenly resolves to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from atom_server.access.guard import OPEN_PATHS
from atom_server.bodies.body import quoted
from atom_server.connections.listen import is_loopback
from atom_server.errors import APIError
from atom_server.options import ServerOptions

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_JSON = "application/json"
# Where files come as forms do. Pages of others are known by the headers that browsers send with forms.
_FORM_PATHS = frozenset(("/v1/files",))
_FORM = "multipart/form-data"


class WebPageGuard:
    """Refuses requests for names that are not this server's, from pages of others, and with bodies other than JSON.

    Args:
        allowed_hosts: names that the Host header may carry besides those of loopback; None for any.
        origins: pages of other sites that may use the server all the same are named by these; "*" for any page.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Sequence[str] | None, *, origins: Collection[str] = frozenset()
    ) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = None if allowed_hosts is None else frozenset(map(str.lower, allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check(scope["method"], Headers(scope=scope), _FORM if scope["path"] in _FORM_PATHS else _JSON)
            except APIError as error:
                return await error.response(scope["path"])(scope, receive, send)
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: Headers, kind: str) -> None:
        if self._hosts is not None:
            self._check_host(headers.getlist("host"), self._hosts)
        if method not in _SAFE_METHODS:
            if not self._origins & {"*", headers.get("origin")}:
                _check_origin(headers)
            _check_type(headers, kind)

    @staticmethod
    def _check_host(given: list[str], allowed: frozenset[str]) -> None:
        name = host_name(given[0]) if len(given) == 1 else None
        if name is not None and (name in allowed or is_loopback(name)):
            return
        own = ", ".join(["localhost", *sorted(allowed)])
        message = (
            f"this server takes requests for {own} only; the Host header says {quoted(', '.join(given))}. "
            "--allowed-hosts names further ones"
        )
        raise APIError(403, message, code="host_not_allowed")


def allowed_hosts(options: ServerOptions) -> tuple[str, ...] | None:
    """The names that `options` allow besides those of loopback; None where they allow any."""
    names = options.host_names
    is_open = not names and not is_loopback(options.host)
    return None if is_open or "*" in names else names


def host_name(host: str) -> str | None:
    """The name in a Host header, without port and brackets, in lower case; None where it is malformed.

    Zones of addresses (``fe80::1%eth0``) are for a machine itself, and stand in no Host header.
    """
    if "%" in host:
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _check_origin(headers: Headers) -> None:
    """Refuse what a page of another site sent. Browsers tell the site; other clients have no reason to."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_foreign = site not in ("same-origin", "none")
    else:
        is_foreign = origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
    if is_foreign:
        message = f"web pages of other sites cannot use this server; this one is of {quoted(origin or site)}"
        raise APIError(403, message, code="origin_not_allowed")


def _check_type(headers: Headers, wanted: str) -> None:
    """Refuse a body that is not JSON: browsers let any page send other types to any address, without asking first."""
    if "transfer-encoding" not in headers and headers.get("content-length", "0").strip() == "0":
        return
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given == wanted or (wanted == _JSON and given.endswith("+json")):
        return
    sent = f"JSON, with the header 'Content-Type: {_JSON}' (curl: -H)" if wanted == _JSON else f"{wanted} (curl: -F)"
    kind = f"is of type {quoted(given)}" if given else "has no type"
    raise APIError(415, f"the body {kind}; send {sent}")
