"""Protocols that every host of the operators implements: what layers keep, caches, batch geometry, collectives."""

from atom_kernels.protocols.cache_format import CACHE_DTYPES, CacheFormat
from atom_kernels.protocols.collectives import (
    SINGLE_RANK,
    AiterMemory,
    Carrier,
    Collectives,
    HostMemory,
    NoPeers,
    PeerMemory,
    Peers,
    PieceMemory,
    SingleRank,
    UnevenCollectives,
)
from atom_kernels.protocols.geometry import BatchGeometry
from atom_kernels.protocols.group_spec import GroupSpec, blocks_of_request, longest_request
from atom_kernels.protocols.kv_cache import CacheLayout, Caches, CacheTensor
from atom_kernels.protocols.pages import Pages
from atom_kernels.protocols.row_dispatcher import RowDispatcher, RowDispatchers
from atom_kernels.protocols.slots import Slots, slot_of_state

__all__ = [
    "CACHE_DTYPES",
    "SINGLE_RANK",
    "AiterMemory",
    "BatchGeometry",
    "CacheFormat",
    "CacheLayout",
    "CacheTensor",
    "Caches",
    "Carrier",
    "Collectives",
    "GroupSpec",
    "HostMemory",
    "NoPeers",
    "Pages",
    "PeerMemory",
    "Peers",
    "PieceMemory",
    "RowDispatcher",
    "RowDispatchers",
    "SingleRank",
    "Slots",
    "UnevenCollectives",
    "blocks_of_request",
    "longest_request",
    "slot_of_state",
]
