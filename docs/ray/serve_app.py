"""A Ray Serve application: each replica is an engine behind ATOM's own routes, started anew where it dies.

``serve run serve_app:application model=/models/my-model tensor_parallel_size=16`` takes settings of `EngineArgs`. Ray
places the engine's ranks, so that the replica itself takes no GPU.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from atom_core import AsyncEngine, EngineArgs
from atom_server.app import create_app


@serve.deployment(max_ongoing_requests=512, health_check_period_s=5)
@serve.ingress()
class Atom:
    """One engine."""

    async def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = await AsyncEngine.start(EngineArgs(**settings))

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._engine)

    def check_health(self) -> None:
        """Raise where the engine is dead."""
        self._engine.check_health()

    async def __del__(self) -> None:
        await self._engine.shutdown()


def application(settings: dict[str, Any]) -> serve.Application:
    """The application of an engine with these settings, the names of which are those of `EngineArgs`."""
    return Atom.bind({"distributed_executor_backend": "ray", **settings})
