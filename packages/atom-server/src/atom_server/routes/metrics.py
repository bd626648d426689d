"""``GET /metrics``: counts and times in the text format of Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from atom_server.state import server_state

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """What runs and waits as of the engine's last step, and what has been served."""
    return Response(server_state(request).metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
