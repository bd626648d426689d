"""``GET /version``, ``GET /server_info``, ``GET /load``: what runs, how it is set up, and how busy it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from atom_core import __version__
from atom_server.state import server_state

router = APIRouter()

_SECRET = frozenset(("api_key", "admin_key"))


@router.get("/version", tags=["version"])
async def version() -> dict[str, str]:
    """The version of the server and the engine, which are one."""
    return {"version": __version__}


@router.get("/server_info", tags=["health"])
async def server_info(request: Request) -> dict[str, Any]:
    """What the engine and the server resolved at start, and how each engine does; secrets are left out."""
    state = server_state(request)
    options = {name: value for name, value in dataclasses.asdict(state.options).items() if name not in _SECRET}
    return {
        "version": __version__,
        "served_model_names": list(state.served_names),
        "engine": msgspec.to_builtins(state.engine.info),
        "engines": msgspec.to_builtins(state.engine.engines),
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
