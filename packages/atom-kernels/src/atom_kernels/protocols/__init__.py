"""Protocols that every host of the operators implements: caches, batch geometry, collectives."""

from atom_kernels.protocols.collectives import SINGLE_RANK, Collectives, SingleRank
from atom_kernels.protocols.geometry import BatchGeometry
from atom_kernels.protocols.kv_cache import CacheLayout, Caches, CacheTensor

__all__ = [
    "SINGLE_RANK",
    "BatchGeometry",
    "CacheLayout",
    "CacheTensor",
    "Caches",
    "Collectives",
    "SingleRank",
]
