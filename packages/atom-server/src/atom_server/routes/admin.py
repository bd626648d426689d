"""Routes about the server itself: its open work, its engine, its profiler. They ask for the admin key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from atom_server.access.guard import needs_admin
from atom_server.errors import APIError, aborted
from atom_server.observe.open_work import open_work
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.schemas.abort import AbortRequest
from atom_server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(needs_admin)])


@router.get("/debug/requests", tags=["health"])
async def requests(request: Request) -> dict[str, Any]:
    """What the server is at work on, the oldest first: ages, phases and tokens, and no text."""
    return await open_work(server_state(request), request.state.record)


@router.post("/abort_requests", tags=["engine"], openapi_extra=described(AbortRequest))
async def abort_requests(request: Request) -> dict[str, list[str]]:
    """End requests by the ids of their answers, or all; their clients are told. Unknown ids are left out."""
    state, body, _ = await accepted(request, AbortRequest, generates=False)
    wanted = set(body.request_ids)
    found = [generation for generation in state.active if body.abort_all or generation.id in wanted]
    for generation in found:
        await generation.abort(aborted())
    return {"aborted": sorted(generation.id for generation in found)}


@router.post("/reset_prefix_cache", tags=["engine"])
async def reset_prefix_cache(request: Request) -> dict[str, str]:
    """Forget all cached prefixes; what runs goes on."""
    await server_state(request).engine.control.reset_prefix_cache()
    return {"status": "ok"}


@router.post("/pause", tags=["engine"])
async def pause(request: Request, mode: Literal["keep", "abort"] = "keep") -> dict[str, str]:
    """Take no further step: what runs and what comes waits for `/resume`, or is ended with ``mode=abort``."""
    state = server_state(request)
    await state.engine.control.pause()
    if mode == "abort":
        for generation in list(state.active):
            await generation.abort(aborted())
    return {"status": "paused"}


@router.post("/resume", tags=["engine"])
async def resume(request: Request) -> dict[str, str]:
    """Go on after `/pause`."""
    await server_state(request).engine.control.resume()
    return {"status": "ok"}


@router.get("/is_paused", tags=["engine"])
async def is_paused(request: Request) -> dict[str, bool]:
    """Whether the engine is paused."""
    return {"is_paused": server_state(request).engine.control.is_paused}


@router.post("/sleep", tags=["engine"])
async def sleep(request: Request, level: Annotated[int, Query(ge=1, le=2)] = 1) -> dict[str, str]:
    """End what is open, and give back the memory of cache and weights: the host keeps weights at level 1."""
    state = server_state(request)
    for generation in list(state.active):
        await generation.abort(aborted())
    await state.engine.sleep(level)
    return {"status": "sleeping"}


@router.post("/wake_up", tags=["engine"])
async def wake_up(request: Request) -> dict[str, str]:
    """Take requests again after `/sleep`."""
    await server_state(request).engine.wake_up()
    return {"status": "ok"}


@router.get("/is_sleeping", tags=["engine"])
async def is_sleeping(request: Request) -> dict[str, bool]:
    """Whether the engine sleeps."""
    return {"is_sleeping": server_state(request).engine.control.sleep_level > 0}


@router.post("/start_profile", tags=["profile"])
async def start_profile(request: Request) -> dict[str, str]:
    """Start tracing in the engine."""
    state = server_state(request)
    directory = _profiler_directory(state)
    await state.engine.start_profile()
    return {"status": "started", "directory": directory}


@router.post("/stop_profile", tags=["profile"])
async def stop_profile(request: Request) -> dict[str, str]:
    """Stop tracing and write the traces."""
    state = server_state(request)
    directory = _profiler_directory(state)
    await state.engine.stop_profile()
    return {"status": "stopped", "directory": directory}


def _profiler_directory(state: ServerState) -> str:
    """Where traces are written; APIError 409 says what to set where no directory was given."""
    directory = state.engine.info.profiler_dir
    if directory is None:
        message = (
            "profiling is not set up: start the server with --torch-profiler-dir DIR, or set ATOM_TORCH_PROFILER_DIR"
        )
        raise APIError(409, message, code="profiler_not_ready")
    return directory
