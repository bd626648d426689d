"""`route`: runs a `Front` until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

from atom_server.access.web_pages import WebPageGuard, allowed_hosts
from atom_server.apart.front import Front
from atom_server.apart.options import RouteOptions
from atom_server.connections.listen import url_of
from atom_server.lifecycle import uvicorn_settings
from atom_server.middleware import RequestContext
from atom_server.options import ServerOptions

logger = logging.getLogger(__name__)


def route(options: RouteOptions, server_options: ServerOptions, listener: socket.socket) -> None:
    """Serve on `listener`."""
    asyncio.run(_route(options, server_options, listener))


async def _route(options: RouteOptions, server_options: ServerOptions, listener: socket.socket) -> None:
    front = Front.of(options)
    watching = asyncio.create_task(front.watch(options))
    logger.info("%s: %s", url_of(listener), front)
    await uvicorn.Server(uvicorn_settings(make_app(front, server_options), server_options)).serve(sockets=[listener])
    watching.cancel()


def make_app(front: Front, options: ServerOptions) -> ASGIApp:
    """The front, with what every server of ours does before a request is looked at."""
    return RequestContext(WebPageGuard(front, allowed_hosts(options)))
