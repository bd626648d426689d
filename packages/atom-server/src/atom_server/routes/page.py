"""``GET /``: a page to chat by and to watch the engine. Its files lie in `page`, and browsers take them as they are."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from atom_server.errors import APIError

router = APIRouter(include_in_schema=False)

_INDEX = "index.html"
_SCRIPTS = ("main.js", "server.js", "chat.js", "tokens.js", "engine.js", "plot.js")
_PARTS = {"page.css": "text/css"} | dict.fromkeys(_SCRIPTS, "text/javascript")
# A browser has to get these before it can be asked for a key. They hold no data.
PAGE_PATHS = frozenset(("/", *(f"/page/{name}" for name in _PARTS)))

# The page may run its own scripts and ask its own server, and nothing else: no script or style inside its HTML, no
# text that becomes HTML, no frame around it, and no word to anybody.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Asked for anew each time and answered by 304: a new version of the server never meets an old script.
    "cache-control": "no-cache",
    "vary": "accept",
}
_TEXT = """\
ATOM serves a large language model here. Browsers get a page to chat by; programs use OpenAI's API under /v1.
/docs lists all paths, and /health says whether the engine works.
"""


@router.get("/")
def index(request: Request) -> Response:
    """The page for browsers, a few words for others."""
    if "text/html" in request.headers.get("accept", ""):
        return _answer(request, _INDEX, "text/html")
    return PlainTextResponse(_TEXT, headers=_HEADERS)


@router.get("/page/{name}")
def part(request: Request, name: str) -> Response:
    """A script or the style of the page."""
    if name not in _PARTS:
        raise APIError(404, f"the page has no such part; it has {', '.join(_PARTS)}")
    return _answer(request, name, _PARTS[name])


def _answer(request: Request, name: str, kind: str) -> Response:
    """A file of the page, or 304 where the browser has it."""
    content = (files("atom_server") / "page" / name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = _HEADERS | {"etag": tag}
    # A proxy that compresses makes the tag a weak one, W/"...".
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
