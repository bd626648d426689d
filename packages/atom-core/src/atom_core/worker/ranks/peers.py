"""Memory that the GPUs of ranks share directly, for the kernels that sum over ranks; or why there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from atom_core.worker.ranks.meeting import Place
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import NoPeers, PeerMemory
from atom_kernels.reduce.buffers import GROUP_SIZES, MAX_BYTES, BufferLayout
from atom_kernels.settings import peer_sums_disabled

logger = logging.getLogger(__name__)


def share_memory(
    rank: int, *, device: str, places: tuple[Place, ...], group: str, smallest: Callable[[int], int]
) -> PeerMemory | NoPeers:
    """Memory among ranks, each of which calls this with all others; either all of them get it, or none.

    Args:
        device: "cpu" or "cuda".
        places: where each rank is.
        group: what torch.distributed calls the ranks.
        smallest: the smallest of the numbers that ranks give.
    """
    if device != "cuda":
        return NoPeers("ranks on CPUs exchange by gloo")
    reason = _why_not(rank, places)
    if not smallest(int(reason is None)):
        return _without(reason or "another rank cannot share its memory")
    try:
        peers: PeerMemory | NoPeers = _meet(rank, len(places), places[rank].device, group)
    except (RuntimeError, TypeError, AttributeError) as error:  # its API is not settled
        peers = _without(f"torch's symmetric memory failed: {' '.join(str(error).split())}")
    # Nobody writes to a buffer before its owner has filled it with zeros.
    if smallest(int(isinstance(peers, PeerMemory))):
        logger.info("kernels over peers' memory sum what is small over ranks")
        return peers
    return peers if isinstance(peers, NoPeers) else _without("another rank could not share its memory")


def _why_not(rank: int, places: tuple[Place, ...]) -> str | None:
    platform, own = detect_platform(), places[rank].device
    if peer_sums_disabled():
        return "ATOM_DISABLE_PEER_SUMS is set"
    if platform.vendor != "nvidia":
        return f"kernels over peers' memory are for NVIDIA GPUs, this is {platform.arch}"
    if reason := platform.why_not("triton"):
        return reason
    if len(places) not in GROUP_SIZES:
        return f"kernels are written for {', '.join(map(str, GROUP_SIZES))} ranks, not {len(places)}"
    if len(hosts := {place.host for place in places}) > 1:
        return f"the ranks are on {len(hosts)} nodes"
    devices = [place.device for place in places]
    apart = [other for other in devices if other != own and not torch.cuda.can_device_access_peer(own, other)]
    if apart:
        return f"GPU {own} cannot reach the memory of GPU {apart[0]}"
    return None if _symmetric_memory() else f"torch {torch.__version__} has no symmetric memory that we know"


def _symmetric_memory() -> Any:
    """torch's module, if it has what we call; it is not settled yet."""
    try:
        from torch.distributed import _symmetric_memory
    except ImportError:
        return None
    return _symmetric_memory if all(hasattr(_symmetric_memory, name) for name in ("empty", "rendezvous")) else None


def _meet(rank: int, size: int, device: int, group: str) -> PeerMemory:
    symmetric, on = _symmetric_memory(), torch.device("cuda", device)
    # Others of its backends have no addresses for every rank.
    if hasattr(symmetric, "set_backend") and symmetric.get_backend(on) not in (None, "CUDA"):
        symmetric.set_backend("CUDA")
    buffer = symmetric.empty(BufferLayout(size, MAX_BYTES).num_bytes, dtype=torch.uint8, device=on)
    handle = symmetric.rendezvous(buffer, group)
    buffer.zero_()
    addresses = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=on)
    calls = torch.zeros(2, dtype=torch.int32, device=on)
    torch.cuda.synchronize(on)
    return PeerMemory(rank, size, addresses, calls, MAX_BYTES, (buffer, handle))


def _without(reason: str) -> NoPeers:
    logger.info("NCCL sums over ranks: %s", reason)
    return NoPeers(reason)
