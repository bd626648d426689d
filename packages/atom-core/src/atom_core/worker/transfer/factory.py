"""`make_connector`: the way to other engines that a configuration names, and the room that it needs."""

from __future__ import annotations

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.offload.protocol import BlockCarrier
from atom_core.worker.ranks.protocol import WorkerRanks
from atom_core.worker.transfer.facts import facts_of
from atom_core.worker.transfer.nixl_memory import NixlMemory
from atom_core.worker.transfer.shared_memory import SharedMemory
from atom_core.worker.transfer.tcp_connector import TcpConnector
from atom_core.worker.transfer.windows import NoWindows, Windows


def num_send_places(config: EngineConfig, pages: CachePages) -> int:
    """Places of a rank for prompts that other engines are to fetch.

    Raises:
        ConfigError: they hold no block.
    """
    transfer = config.cache.transfer
    if transfer is None or not transfer.sends:
        return 0
    num_ranks = config.parallel.tensor_parallel_size
    num_places = transfer.buffer_bytes // num_ranks // pages.page_bytes
    if num_places < 1:
        raise ConfigError(
            f"kv_transfer_config has kv_buffer_size {transfer.buffer_bytes}, and one block of "
            f"{config.cache.block_size} tokens takes {pages.page_bytes * num_ranks}: give more"
        )
    return num_places


def make_connector(
    config: EngineConfig, pages: CachePages, places: HostPlaces, ranks: WorkerRanks
) -> BlockCarrier | None:
    """The connector of a rank; None where no other engine is met.

    Raises:
        ConfigError: its address cannot be had, or the library that it needs is not installed.
    """
    transfer = config.cache.transfer
    if transfer is None:
        return None
    return TcpConnector(transfer, ranks.rank, places, facts_of(config, pages), make_windows(transfer, places))


def make_windows(transfer: KVTransferConfig, places: HostPlaces) -> Windows:
    """The way of pages beside the socket.

    Raises:
        ConfigError: the library that it needs is not installed, or cannot start.
    """
    if transfer.kv_connector == "NixlConnector":
        return NixlMemory(places.memory if transfer.sends else places.memory[:0], transfer.timeout)
    return SharedMemory() if transfer.shared_memory else NoWindows()
