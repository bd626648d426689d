"""`make_mover`: sizes and makes what moves blocks between a rank's cache and other places."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig, OffloadConfig
from atom_core.host_memory import available_memory
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.devices.protocol import WorkerDevice
from atom_core.worker.offload.disk import DiskPages
from atom_core.worker.offload.kept_pages import KeptPages
from atom_core.worker.offload.mover import BlockMover
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.offload.protocol import BlockCarrier
from atom_core.worker.ranks.protocol import WorkerRanks
from atom_core.worker.transfer.factory import make_connector, num_send_places
from atom_kernels.protocols import Caches


@dataclass(frozen=True)
class OffloadSize:
    """Places of a rank for blocks that leave its cache, and for those that others fetch; 0 where none are kept.

    `choices` says how many there are, in words.
    """

    num_in_memory: int = 0
    num_on_disk: int = 0
    num_to_send: int = 0
    choices: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[int, int]:
        """Those in memory and those on a disk."""
        return self.num_in_memory, self.num_on_disk


def size_offload(config: EngineConfig, pages: CachePages) -> OffloadSize:
    """Share what was asked for among the ranks of an engine.

    Raises:
        ConfigError: it holds no block, or there is not as much.
    """
    offload, num_ranks = config.cache.offload, config.parallel.tensor_parallel_size
    num_to_send = num_send_places(config, pages)
    choices = [f"kv_transfer: {num_to_send} blocks in memory wait to be fetched, at most"] if num_to_send else []
    if offload is None:
        return OffloadSize(num_to_send=num_to_send, choices=tuple(choices))
    _check_there_is(config)
    num_in_memory = offload.memory_bytes // num_ranks // pages.page_bytes
    num_on_disk = offload.disk_bytes // num_ranks // pages.page_bytes
    if num_in_memory < 1:
        raise ConfigError(
            f"kv_offload_memory is {offload.memory_bytes} bytes, and one block of {config.cache.block_size} tokens "
            f"takes {pages.page_bytes * num_ranks}: give more, for example 4GiB, or leave it unset"
        )
    held = f"{num_in_memory} blocks in memory"
    if num_on_disk:
        held += f" and {num_on_disk} on the disk"
    choices.append(f"kv_offload: {held}, of {config.cache.block_size} tokens each")
    return OffloadSize(num_in_memory, num_on_disk, num_to_send, tuple(choices))


def make_mover(
    config: EngineConfig,
    pages: CachePages,
    caches: Mapping[str, Caches],
    *,
    size: OffloadSize,
    device: WorkerDevice,
    ranks: WorkerRanks,
) -> BlockMover | None:
    """What moves the blocks of these caches; None where none come from elsewhere, or go there."""
    offload = config.cache.offload
    if offload is None and config.cache.transfer is None:
        return None
    num_places = size.num_in_memory + size.num_to_send
    places = HostPlaces(device.make_block_bytes(page_tensors(caches, pages), num_places))
    carriers: list[BlockCarrier] = []
    if offload is not None:
        carriers.append(KeptPages(places, _make_disk(offload, config, places, ranks)))
    connector = make_connector(config, pages, places, ranks)
    if connector is not None:
        carriers.append(connector)
    return BlockMover(places, carriers, ranks)


def _make_disk(
    offload: OffloadConfig, config: EngineConfig, places: HostPlaces, ranks: WorkerRanks
) -> DiskPages | None:
    if offload.folder is None:
        return None
    try:
        return DiskPages(offload.folder, config.parallel.name_of(ranks.rank), places.page_bytes)
    except OSError as error:
        raise ConfigError(
            f"kv_offload_folder {offload.folder} cannot be used: {error}; give a folder that can be written"
        ) from None


def page_tensors(caches: Mapping[str, Caches], pages: CachePages) -> list[torch.Tensor]:
    """The tensors of every place of a page: those of the layers of the longest group, which has a layer in each."""
    longest = max((group for group in pages.groups if not group.spec.in_slots), key=lambda group: len(group.layers))
    return [tensor for name in longest.layers for tensor in caches[name]]


def _check_there_is(config: EngineConfig) -> None:
    offload = config.cache.offload
    if offload is None:
        return
    free = available_memory()
    if free is not None and offload.memory_bytes * config.parallel.data_parallel_size > free:
        of_all = f" for each of {config.parallel.data_parallel_size} engines" * (config.parallel.data_parallel_size > 1)
        raise ConfigError(
            f"kv_offload_memory asks for {offload.memory_bytes / (1 << 30):.1f} GiB{of_all}, and "
            f"{free / (1 << 30):.1f} GiB of the host's memory are free: give less"
        )
    if offload.folder is not None:
        existing = next(folder for folder in (offload.folder, *offload.folder.absolute().parents) if folder.exists())
        left = shutil.disk_usage(existing).free
        if offload.disk_bytes * config.parallel.data_parallel_size > left:
            raise ConfigError(
                f"kv_offload_disk asks for {offload.disk_bytes / (1 << 30):.1f} GiB, and {left / (1 << 30):.1f} GiB "
                f"are free in {offload.folder}: give less, or another folder"
            )
