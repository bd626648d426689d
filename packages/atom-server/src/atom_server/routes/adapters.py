"""``POST /v1/load_lora_adapter`` and ``POST /v1/unload_lora_adapter``. They ask for the admin key."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from atom_server.access.guard import needs_admin
from atom_server.errors import APIError
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.schemas.adapters import LoadAdapterRequest, UnloadAdapterRequest

router = APIRouter(dependencies=[Depends(needs_admin)], tags=["models"])


@router.post("/v1/load_lora_adapter", openapi_extra=described(LoadAdapterRequest))
async def load_lora_adapter(request: Request) -> dict[str, str]:
    """Load an adapter; requests may name it as their model once this is answered."""
    state, body, _ = await accepted(request, LoadAdapterRequest)
    if body.lora_name in state.served_names:
        raise APIError(400, f"the model is served as {body.lora_name!r}: choose another name", param="lora_name")
    await state.engine.load_adapter(body.lora_name, body.lora_path)
    return {"status": "ok"}


@router.post("/v1/unload_lora_adapter", openapi_extra=described(UnloadAdapterRequest))
async def unload_lora_adapter(request: Request) -> dict[str, str]:
    """Take no further request for an adapter; it leaves the memory once those that are open have ended."""
    state, body, _ = await accepted(request, UnloadAdapterRequest)
    if body.lora_name not in state.engine.adapters.loaded:
        loaded = ", ".join(state.engine.adapters.loaded) or "none"
        message = f"the adapter {body.lora_name!r} is not loaded; loaded are: {loaded}"
        raise APIError(404, message, param="lora_name", code="model_not_found")
    await state.engine.unload_adapter(body.lora_name)
    return {"status": "ok"}
