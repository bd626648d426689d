"""Memory of a host that the ranks on it map, for the C kernel that sums over them; or why there is none."""

from __future__ import annotations

import logging
import mmap
import os
import secrets

import torch

from atom_core.worker.ranks.protocol import MeetingRanks
from atom_kernels.native import native_unavailable
from atom_kernels.protocols import HostMemory, NoPeers, Peers
from atom_kernels.reduce.host_memory import MAX_BYTES, num_bytes
from atom_kernels.settings import peer_sums_disabled

logger = logging.getLogger(__name__)


def share_memory(ranks: MeetingRanks) -> Peers:
    """Memory among ranks on one host, who call this together; either all of them get it, or none.

    It has no name, and is gone with the last process that has mapped it.
    """
    reason = _why_not(ranks)
    if not ranks.smallest(int(reason is None)):
        return _without(reason or "another rank cannot share its memory")
    mapped = _map(ranks)
    if not ranks.smallest(int(mapped is not None)) or mapped is None:
        return _without("another process's memory cannot be opened here")
    logger.info("a C kernel over shared memory sums over ranks")
    return HostMemory(ranks.rank, ranks.size, mapped, MAX_BYTES)


def _why_not(ranks: MeetingRanks) -> str | None:
    if peer_sums_disabled():
        return "ATOM_DISABLE_PEER_SUMS is set"
    if len(hosts := {place.host for place in ranks.places}) > 1:
        return f"the ranks are on {len(hosts)} nodes"
    if not hasattr(os, "memfd_create"):
        return "this system has no memory without a name"
    return native_unavailable("reduce")


def _map(ranks: MeetingRanks) -> torch.Tensor | None:
    """The memory that rank 0 makes; None where this process finds another one, or none, in its place."""
    size = num_bytes(ranks.size)
    own = _make(size) if ranks.rank == 0 else -1
    # What is opened by a number of another process must be what that process meant.
    mark = secrets.randbits(62)
    try:
        told = torch.tensor([[os.getpid(), own, mark]], dtype=torch.int64)
        process, descriptor, mark = (int(number) for number in ranks.gather(told, 0)[0])
        memory = _mapped(process, descriptor, size)
        place = None if memory is None else memory[-8:].view(torch.int64)
        if ranks.rank == 0 and place is not None:
            place[0] = mark
        ranks.smallest(0)  # the mark is there
        is_meant = place is not None and int(place[0]) == mark
        ranks.smallest(0)  # everybody has read it
        if ranks.rank == 0 and place is not None:
            place[0] = 0
        return memory if is_meant else None
    finally:
        if own >= 0:
            os.close(own)


def _make(size: int) -> int:
    descriptor = os.memfd_create("atom-ranks")
    os.ftruncate(descriptor, size)
    return descriptor


def _mapped(process: int, descriptor: int, size: int) -> torch.Tensor | None:
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    except OSError:
        return None
    try:
        return torch.frombuffer(mmap.mmap(opened, size), dtype=torch.uint8)
    except (OSError, ValueError):
        return None
    finally:
        os.close(opened)


def _without(reason: str) -> NoPeers:
    logger.info("gloo makes the ranks' sums: %s", reason)
    return NoPeers(reason)
