"""``GET /version``."""

from __future__ import annotations

from fastapi import APIRouter

from atom_core import __version__

router = APIRouter(tags=["version"])


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of the server and the engine, which are one."""
    return {"version": __version__}
