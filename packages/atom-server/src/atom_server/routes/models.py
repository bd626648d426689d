"""``GET /v1/models``: the names that the model is served by, and its adapters."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from atom_server.state import ServerState, server_state

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """Every name that the model is served by, and every adapter."""
    state = server_state(request)
    return {"object": "list", "data": [_model(state, name) for name in (*state.served_names, *state.adapters)]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One served name, or one adapter."""
    state = server_state(request)
    return _model(state, state.check_model(name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    adapter = state.adapters.get(name)
    return {
        "id": name,
        "object": "model",
        "created": state.created if adapter is None else int(adapter.created),
        "owned_by": "atom",
        "root": state.model_root if adapter is None else name,
        "parent": None if adapter is None else state.model_name,
        "max_model_len": state.engine.info.max_model_len,
        "input_modalities": _input_modalities(state),
    }


def _input_modalities(state: ServerState) -> list[str]:
    spec = state.engine.info.images
    if state.pictures is None or spec is None:
        return ["text"]
    return ["text", "image"] if spec.video is None else ["text", "image", "video"]
