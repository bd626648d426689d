"""The paged KV cache seen as ids: blocks, who holds them, and which prefixes they store. Torch-free."""

from atom_core.kv_cache.block_pool import BlockPool
from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.config import KVCacheConfig
from atom_core.kv_cache.hashing import BlockHasher, make_block_hasher, pack_token_ids
from atom_core.kv_cache.paged_cache import PagedCache
from atom_core.kv_cache.prefix_cache import PrefixCache
from atom_core.kv_cache.snapshot_places import snapshot_places

__all__ = [
    "BlockHasher",
    "BlockPool",
    "BlockTable",
    "KVCacheConfig",
    "PagedCache",
    "PrefixCache",
    "make_block_hasher",
    "pack_token_ids",
    "snapshot_places",
]
