"""The FastAPI application: routes, error shapes, request ids, who may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from atom_core import __version__
from atom_server.access.guard import METRICS_PATH, OPEN_PATHS, ApiKeys
from atom_server.access.web_pages import WebPageGuard, allowed_hosts
from atom_server.bodies.memory import BodyMemory
from atom_server.errors import install_error_handlers
from atom_server.middleware import HeadAsGet, RequestContext
from atom_server.options import ServerOptions
from atom_server.routes import ROUTERS, page
from atom_server.routes.openapi import document_limits
from atom_server.startup import make_state

if TYPE_CHECKING:
    from atom_core import AsyncEngine

# As many bodies of the largest size may be on their way at once; smaller ones, accordingly more.
_NUM_LARGEST_BODIES = 16
_METHODS = ("GET", "POST", "DELETE")


def create_app(engine: AsyncEngine, options: ServerOptions | None = None) -> FastAPI:
    """The app that serves `engine`. It neither starts nor ends the engine.

    Raises:
        ChatTemplateError, OSError: the chat template cannot be read or does not parse.
        ConfigError: the keys are not what they should be.
    """
    options = options or ServerOptions()
    app = FastAPI(
        title="ATOM",
        description="An OpenAI-compatible server for large language models.",
        version=__version__,
        separate_input_output_schemas=False,
    )
    app.state.server = make_state(engine, options)
    for router in ROUTERS:
        app.include_router(router)
    if options.page:
        app.include_router(page.router)
    document_limits(app, engine.info)
    install_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyMemory, most_bytes=_NUM_LARGEST_BODIES * options.max_body_bytes)
    app.add_middleware(ApiKeys, keys=app.state.server.keys, open_paths=_open_paths(options))
    app.add_middleware(WebPageGuard, allowed_hosts=allowed_hosts(options), origins=options.origins)
    if options.origins:
        # Browsers ask before they send a key or JSON, and such a question carries no key: it is answered out here.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=["retry-after", "x-request-id"],
        )
    app.add_middleware(RequestContext)
    return app


def _open_paths(options: ServerOptions) -> frozenset[str]:
    """What can be reached without a key."""
    of_page = page.PAGE_PATHS if options.page else frozenset()
    return OPEN_PATHS | of_page | ({METRICS_PATH} if options.open_metrics else frozenset())
