"""What the server tells of itself: whether it works, what it serves, how it is set up."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from atom_core import __version__
from atom_server.errors import engine_dead
from atom_server.state import ServerState, server_state

router = APIRouter()

_SECRET = frozenset(("api_key", "admin_key"))


@router.get("/health", tags=["health"])
async def health(request: Request) -> dict[str, str]:
    """`{"status": "ok"}` while the engine's process lives and makes progress, 503 otherwise."""
    _check_engine(server_state(request))
    return {"status": "ok"}


@router.get("/ready", tags=["health"])
async def ready(request: Request) -> dict[str, str]:
    """As `/health`, but 503 too while the server is going down, or its engine is paused."""
    state = server_state(request)
    _check_engine(state)
    state.check_is_ready()
    return {"status": "ok"}


def _check_engine(state: ServerState) -> None:
    if state.dead_reason is not None:
        raise engine_dead(state.dead_reason)
    state.engine.check_health()


@router.get("/version", tags=["version"])
async def version() -> dict[str, str]:
    """The version of the server and the engine, which are one."""
    return {"version": __version__}


@router.get("/v1/models", tags=["models"])
async def list_models(request: Request) -> dict[str, Any]:
    """Every name that the model is served by."""
    state = server_state(request)
    return {"object": "list", "data": [_model(state, name) for name in state.served_names]}


@router.get("/v1/models/{name:path}", tags=["models"])
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One served name."""
    state = server_state(request)
    return _model(state, state.check_model(name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "atom",
        "root": state.model_root,
        "parent": None,
        "max_model_len": state.engine.info.max_model_len,
    }


@router.get("/server_info", tags=["health"])
async def server_info(request: Request) -> dict[str, Any]:
    """What the engine and the server resolved at start; secrets are left out."""
    state = server_state(request)
    options = {name: value for name, value in dataclasses.asdict(state.options).items() if name not in _SECRET}
    return {
        "version": __version__,
        "served_model_names": list(state.served_names),
        "engine": msgspec.to_builtins(state.engine.info),
        "server": options | {"asks_for_api_key": len(state.keys) > 0},
    }


@router.get("/load", tags=["health"])
async def load(request: Request) -> dict[str, Any]:
    """Requests running and waiting, and the share of the KV cache in use, as of the engine's last step."""
    state = server_state(request)
    stats = state.engine.stats
    used = stats.num_blocks - stats.num_free_blocks if stats else 0
    return {
        "server_load": len(state.active),
        "num_requests_running": stats.num_running if stats else 0,
        "num_requests_waiting": stats.num_waiting if stats else 0,
        "max_num_queued_requests": state.engine.queue_limits.max_num_queued_requests,
        "max_num_queued_tokens": state.engine.queue_limits.max_num_queued_tokens,
        "kv_cache_usage": used / stats.num_blocks if stats and stats.num_blocks else 0.0,
    }
