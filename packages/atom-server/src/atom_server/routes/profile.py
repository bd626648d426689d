"""``POST /start_profile`` and ``POST /stop_profile``; 409 says what to set where no directory was given."""

from __future__ import annotations

from fastapi import APIRouter, Request

from atom_server.errors import APIError
from atom_server.state import ServerState, server_state

router = APIRouter(tags=["profile"])


@router.post("/start_profile")
async def start_profile(request: Request) -> dict[str, str]:
    """Start tracing in the engine."""
    state = server_state(request)
    directory = _directory(state)
    await state.engine.start_profile()
    return {"status": "started", "directory": directory}


@router.post("/stop_profile")
async def stop_profile(request: Request) -> dict[str, str]:
    """Stop tracing and write the traces."""
    state = server_state(request)
    directory = _directory(state)
    await state.engine.stop_profile()
    return {"status": "stopped", "directory": directory}


def _directory(state: ServerState) -> str:
    directory = state.engine.info.profiler_dir
    if directory is None:
        message = (
            "profiling is not set up: start the server with --torch-profiler-dir DIR, or set ATOM_TORCH_PROFILER_DIR"
        )
        raise APIError(409, message, code="profiler_not_ready")
    return directory
