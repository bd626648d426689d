"""`RayCluster`: a Ray cluster that is there already, or one of this host that goes with the engine.

This is one of the files that import Ray; it and its actors are made only where that is asked for.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

from atom_core import settings
from atom_core.errors import EngineStartError

# Bytes in which Ray keeps objects, of which ranks have none: the smallest that it starts with.
_OBJECT_BYTES = 80_000_000
# How long bundles may wait for resources that others have: on one node, and anywhere.
_PACKED_SECONDS, _ANYWHERE_SECONDS = 5.0, 60.0


class RayCluster:
    """This process's part in a cluster.

    Args:
        size: the ranks that it has to hold, where one has to be started.

    Raises:
        EngineStartError: there is no cluster at the address that the environment names.
    """

    def __init__(self, size: int) -> None:
        settings.prepare_ray()
        import ray

        self._ray: Any = ray
        self._is_ours = not ray.is_initialized()
        self._groups: list[Any] = []
        if self._is_ours:
            with _same_handlers():
                self._connect(size)

    def _connect(self, size: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            self._ray.init(address="auto", **quiet)
            return
        except ConnectionError as error:
            if (address := settings.ray_address()) is not None:
                message = " ".join(str(error).split())
                raise EngineStartError(
                    f"no Ray cluster lets us in at RAY_ADDRESS={address} (where it asks for a token, set "
                    f"RAY_AUTH_MODE=token and RAY_AUTH_TOKEN): {message}"
                ) from None
        self._ray.init(num_cpus=size, include_dashboard=False, object_store_memory=_OBJECT_BYTES, **quiet)

    @property
    def address(self) -> str:
        """The address of this process's node."""
        return self.addresses[self._ray.get_runtime_context().get_node_id()]

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each node, by its id."""
        return {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}

    def reserve(self, size: int, resource: str) -> Any:
        """A placement group with a bundle for each rank: on one node where one is large enough, else on few.

        Args:
            size: how many ranks there are.
            resource: what each of them takes one of, "CPU" or "GPU".

        Raises:
            EngineStartError: the cluster has no room for them.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        counts = [node["Resources"].get(resource, 0) for node in self._ray.nodes() if node["Alive"]]
        tries = [("PACK", _ANYWHERE_SECONDS)] if sum(counts) >= size else []
        if max(counts) >= size:
            tries.insert(0, ("STRICT_PACK", _PACKED_SECONDS))
        for strategy, seconds in tries:
            group = placement_group([{resource: 1}] * size, strategy=strategy)
            if group.wait(seconds):
                self._groups.append(group)
                return group
            remove_placement_group(group)
        free = self._ray.available_resources().get(resource, 0)
        raise EngineStartError(
            f"the Ray cluster has no room for {size} ranks, which take a {resource} each: of {sum(counts):g} on "
            f"{len(counts)} node{'s' * (len(counts) != 1)} {free:g} are free"
        )

    def close(self) -> None:
        """Give back what was reserved, and end what was started."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            with contextlib.suppress(Exception):  # a cluster that is gone has nothing reserved
                remove_placement_group(group)
        self._groups.clear()
        if self._is_ours:
            self._ray.shutdown()


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which this program has its own plans for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
