"""``GET /health``: whether the engine works. ``GET /ready``: whether new requests are taken."""

from __future__ import annotations

from fastapi import APIRouter, Request

from atom_server.errors import engine_dead
from atom_server.state import ServerState, server_state

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """`{"status": "ok"}` while the engine's process lives and makes progress, 503 otherwise."""
    _check_engine(server_state(request))
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """As `/health`, but 503 too while the server is going down."""
    state = server_state(request)
    _check_engine(state)
    state.check_takes_requests()
    return {"status": "ok"}


def _check_engine(state: ServerState) -> None:
    if state.dead_reason is not None:
        raise engine_dead(state.dead_reason)
    state.engine.check_health()
