"""``GET /health`` and ``GET /ready``: whether the engine works, and whether the server takes requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from atom_server.errors import engine_dead
from atom_server.state import ServerState, server_state

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """`{"status": "ok"}` while the engine's process lives and makes progress, 503 otherwise.

    One of several engines is enough: then the status is "degraded", and the detail names the others.
    """
    state = server_state(request)
    _check_engine(state)
    engines = state.engine.engines
    others = [engine for engine in engines if engine.state != "serving"]
    if not others:
        return {"status": "ok"}
    lines = [f"engine {engine.rank} is {engine.state}: {engine.cause}" for engine in others]
    serving = f"{len(engines) - len(others)} of {len(engines)} engines serve"
    return {"status": "degraded", "detail": "; ".join([serving, *lines])}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """As `/health`, but 503 too while the server is going down, or its engine is paused or sleeps."""
    state = server_state(request)
    _check_engine(state)
    state.check_is_ready()
    return {"status": "ok"}


def _check_engine(state: ServerState) -> None:
    if state.dead_reason is not None:
        raise engine_dead(state.dead_reason)
    state.engine.check_health()
