"""``GET /v1/models``: the names that the model is served by."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from atom_server.state import ServerState, server_state

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """Every name that the model is served by."""
    state = server_state(request)
    return {"object": "list", "data": [_model(state, name) for name in state.served_names]}


@router.get("/v1/models/{name:path}")
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
