"""Memory that the GPUs of ranks share directly, for the kernels that sum over ranks; or why there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from atom_core.worker.ranks.copy_engine import CopyEngine
from atom_core.worker.ranks.protocol import MeetingRanks
from atom_kernels.aiter import all_reduce as aiter_all_reduce
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.protocols import NoPeers, PeerMemory, Peers, PieceMemory
from atom_kernels.reduce.buffers import GROUP_SIZES, MAX_BYTES, BufferLayout, slots_in
from atom_kernels.settings import peer_sums_disabled

logger = logging.getLogger(__name__)


def share_memory(ranks: MeetingRanks) -> Peers:
    """Memory among GPUs, whose ranks call this together; either all of them get it, or none."""
    platform = detect_platform()
    reason = _why_not(ranks, platform)
    if not ranks.smallest(int(reason is None)):
        return _without(reason or "another rank cannot share its memory")
    meet = _meet_by_aiter if platform.vendor == "amd" else _meet_by_torch
    peers = _met(meet, ranks)
    # Nobody writes to a buffer before its owner has filled it with zeros.
    if ranks.smallest(int(not isinstance(peers, NoPeers))):
        logger.info("kernels over peers' memory sum what is small over ranks")
        return peers
    return peers if isinstance(peers, NoPeers) else _without("another rank could not share its memory")


def _met(meet: Callable[[MeetingRanks], Peers], ranks: MeetingRanks) -> Peers:
    try:
        return meet(ranks)
    except (RuntimeError, TypeError, AttributeError, OSError) as error:  # their interfaces are not settled
        return _without(f"sharing memory failed: {' '.join(str(error).split())}")


def _why_not(ranks: MeetingRanks, platform: Platform) -> str | None:
    devices = [place.device for place in ranks.places]
    own = devices[ranks.rank]
    if peer_sums_disabled():
        return "ATOM_DISABLE_PEER_SUMS is set"
    why_no_kernels = aiter_all_reduce.why_not_shared if platform.vendor == "amd" else _why_no_kernels_of_ours
    if reason := why_no_kernels(ranks.size, platform):
        return reason
    if len(hosts := {place.host for place in ranks.places}) > 1:
        return f"the ranks are on {len(hosts)} nodes"
    apart = [other for other in devices if other != own and not torch.cuda.can_device_access_peer(own, other)]
    return f"GPU {own} cannot reach the memory of GPU {apart[0]}" if apart else None


def _why_no_kernels_of_ours(size: int, platform: Platform) -> str | None:
    if platform.vendor != "nvidia":
        return f"kernels over peers' memory are for NVIDIA GPUs, this is {platform.arch}"
    if reason := platform.why_not("triton"):
        return reason
    if size not in GROUP_SIZES:
        return f"kernels are written for {', '.join(map(str, GROUP_SIZES))} ranks, not {size}"
    return None if _symmetric_memory() else f"torch {torch.__version__} has no symmetric memory that we know"


def _symmetric_memory() -> Any:
    """torch's module, if it has what we call; it is not settled yet."""
    try:
        from torch.distributed import _symmetric_memory
    except ImportError:
        return None
    return _symmetric_memory if all(hasattr(_symmetric_memory, name) for name in ("empty", "rendezvous")) else None


def _meet_by_torch(ranks: MeetingRanks) -> PeerMemory:
    symmetric, on = _symmetric_memory(), torch.device("cuda", ranks.places[ranks.rank].device)
    # Others of its backends have no addresses for every rank.
    if hasattr(symmetric, "set_backend") and symmetric.get_backend(on) not in (None, "CUDA"):
        symmetric.set_backend("CUDA")
    num_bytes = BufferLayout(ranks.size, MAX_BYTES).num_bytes
    buffer = symmetric.empty(num_bytes, dtype=torch.uint8, device=on)
    handle = symmetric.rendezvous(buffer, ranks.group)
    buffer.zero_()
    pieces = None
    # One GPU has other things to do than to wait for pieces from itself.
    if len({place.device for place in ranks.places}) == 2:
        theirs = handle.get_buffer(1 - ranks.rank, (num_bytes,), torch.uint8)
        pieces = PieceMemory(*slots_in(buffer, MAX_BYTES), CopyEngine(*slots_in(theirs, MAX_BYTES)))
    addresses = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=on)
    calls = torch.zeros(2, dtype=torch.int32, device=on)
    torch.cuda.synchronize(on)
    return PeerMemory(ranks.rank, ranks.size, addresses, calls, MAX_BYTES, (buffer, handle), pieces)


def _meet_by_aiter(ranks: MeetingRanks) -> Peers:
    on = torch.device("cuda", ranks.places[ranks.rank].device)
    return aiter_all_reduce.share_memory(
        ranks.rank, ranks.size, device=on, gather=lambda given: ranks.gather(given[None], 0)
    )


def _without(reason: str) -> NoPeers:
    logger.info("the ranks' library makes their sums: %s", reason)
    return NoPeers(reason)
