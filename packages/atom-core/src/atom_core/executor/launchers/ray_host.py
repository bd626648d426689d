"""`RankHost`: the actor in which Ray starts a rank, on whichever node it has chosen. Torch-free."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import NamedTuple

from atom_core import settings
from atom_core.executor.launchers.connections import interface_of
from atom_core.executor.launchers.hosting import host_rank


class HostFacts(NamedTuple):
    """What an actor finds out where it is.

    Attributes:
        node: the id of its node.
        devices: the GPUs that Ray gave it, by their numbers on that node.
    """

    node: str
    devices: tuple[str, ...]


class RankHost:
    """Starts one rank, in a process of its own, which ends with this one."""

    def facts(self) -> HostFacts:
        """Where this is."""
        import ray

        context = ray.get_runtime_context()
        return HostFacts(context.get_node_id(), tuple(context.get_accelerator_ids().get("GPU", ())))

    def run(
        self, engine: tuple[str, int], secret: bytes, rank: int, *, address: str, devices: str, num_threads: int
    ) -> str:
        """Run a rank until it ends; see `host_rank`.

        Args:
            engine: where the engine listens.
            secret: what both ends must know.
            rank: its number.
            address: the address of this node.
            devices: the numbers of the GPUs that all ranks of this node have, with commas between them.
            num_threads: threads of the rank.
        """
        interface = interface_of(address)
        if interface is None and not settings.names_rank_interfaces():
            return (
                f"cannot tell which network of its node has the address {address}: set GLOO_SOCKET_IFNAME and "
                "NCCL_SOCKET_IFNAME there"
            )
        environment = settings.rank_environment(num_threads, interface or "lo")
        return host_rank(engine, secret, rank, environment=settings.with_devices(environment, devices))
