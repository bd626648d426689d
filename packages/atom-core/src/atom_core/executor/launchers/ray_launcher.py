"""`RayLauncher`: ranks that Ray places on its nodes and starts there. Steps go over our own connections."""

# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from atom_core.errors import EngineStartError
from atom_core.executor.launchers.doorway import Doorway
from atom_core.executor.launchers.handshake import make_secret
from atom_core.executor.launchers.hosted_rank import HostedRank, receive_ranks
from atom_core.executor.launchers.protocol import RanksWanted
from atom_core.executor.launchers.ray_cluster import RayCluster
from atom_core.executor.launchers.ray_host import HostFacts, RankHost
from atom_core.worker.ranks.meeting import Place

# An actor's process has yet to import this package, and perhaps Ray has to fetch its environment.
START_SECONDS = 120.0
_LOOK_SECONDS = 0.25


class _Placed(NamedTuple):
    """An actor, where it is, and the GPUs of all ranks of its node."""

    actor: Any
    place: Place
    devices: str


class RayLauncher:
    """Ranks in actors of one placement group. Ray gives each the secret by which the engine knows it."""

    def __init__(self) -> None:
        self._cluster: RayCluster | None = None
        self._actors: list[Any] = []

    def start(self, wanted: RanksWanted) -> tuple[list[HostedRank], None]:
        try:
            self._cluster = cluster = RayCluster(wanted.size)
            placed = self._place(cluster, wanted)
            secret = make_secret()
            door = Doorway(cluster.address, range(wanted.size), secret)
            runs = [
                actor.run.remote(
                    door.address, secret, rank, address=place.host, devices=devices, num_threads=wanted.num_threads
                )
                for rank, (actor, place, devices) in enumerate(placed)
            ]
            threading.Thread(target=_watch, args=(runs, door), daemon=True).start()
            return receive_ranks(door, lambda rank, _: placed[rank].place, START_SECONDS), None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what is left of the actors, and of a cluster that was started for them."""
        if self._cluster is None:
            return
        import ray

        for actor in self._actors:
            with contextlib.suppress(Exception):  # its node, or the whole cluster, may be gone
                ray.kill(actor)
        self._actors.clear()
        self._cluster.close()
        self._cluster = None

    def _place(self, cluster: RayCluster, wanted: RanksWanted) -> list[_Placed]:
        """An actor in each bundle, in the order of ranks: those of a node follow each other, this one's come first."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resource = "CPU" if wanted.device == "cpu" else "GPU"
        group = cluster.reserve(wanted.size, resource)
        takes = {"num_cpus": int(resource == "CPU"), "num_gpus": int(resource == "GPU"), "max_restarts": 0}
        for bundle in range(wanted.size):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            self._actors.append(ray.remote(RankHost).options(scheduling_strategy=where, **takes).remote())
        try:
            facts = ray.get([actor.facts.remote() for actor in self._actors], timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            raise EngineStartError(f"Ray could not start the ranks: {' '.join(str(error).split())}") from None
        return in_order(self._actors, facts, cluster.addresses, first=cluster.address)


def in_order(
    actors: Sequence[Any], facts: Sequence[HostFacts], addresses: dict[str, str], *, first: str
) -> list[_Placed]:
    """Actors in the order of ranks, each with its place: its device counts among those of its node's ranks.

    Args:
        actors: one for each rank, in any order.
        facts: what they found out.
        addresses: the addresses of nodes, by their ids.
        first: the address of the node whose ranks come first.
    """
    hosts = [addresses[each.node] for each in facts]
    order = sorted(range(len(actors)), key=lambda i: (hosts[i] != first, hosts[i], [int(n) for n in facts[i].devices]))
    placed: list[_Placed] = []
    for i in order:
        of_node = [j for j in order if hosts[j] == hosts[i]]
        devices = ",".join(number for j in of_node for number in facts[j].devices)
        placed.append(_Placed(actors[i], Place(hosts[i], of_node.index(i)), devices))
    return placed


def _watch(runs: Sequence[Any], door: Doorway) -> None:
    """Tell whoever waits for ranks why one will not come. Once they have come, their lifelines tell how they end."""
    import ray

    while not door.is_closed:
        ended, _ = ray.wait(runs, timeout=_LOOK_SECONDS)
        for run in ended:
            try:
                why = ray.get(run)
            except Exception as error:
                why = f"was not started by Ray: {' '.join(str(error).split())}"
            door.expect_no_more(runs.index(run), why)
        if ended:
            return
