"""What is about the server itself: its profiler, and what it is at work on. Asks for the admin key."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from atom_server.access.guard import needs_admin
from atom_server.errors import APIError
from atom_server.state import ServerState, server_state

router = APIRouter(dependencies=[Depends(needs_admin)])


@router.get("/debug/requests", tags=["health"])
async def requests(request: Request) -> dict[str, list[dict[str, object]]]:
    """What is in the engine, the oldest first: ages, phases and tokens, and no text."""
    oldest_first = sorted(server_state(request).active, key=lambda generation: generation.submitted)
    return {"requests": [generation.describe() for generation in oldest_first]}


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
