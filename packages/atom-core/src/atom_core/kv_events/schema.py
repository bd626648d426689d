"""The messages, as vLLM 0.26 writes them in msgpack: a batch is an array, an event is a map with its name as `type`."""

from __future__ import annotations

import msgspec

ExtraKey = str | tuple[str, int]
MEDIUM = "GPU"  # vLLM's word for the memory that the model attends over, also where that is a CPU's


class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Blocks that follow each other are cached from now on; routers find them by their tokens.

    Attributes:
        block_hashes: their names.
        parent_block_hash: the name of the block before the first one; None where that begins a prompt.
        token_ids: the tokens of all of them.
        block_size: tokens of each.
        extra_keys: what else is in the name, for each block: pictures, each as its digest in hex and where it begins,
            counted from the block's first token, and the salt of a first block.
        group_idx: the group of layers.
        kv_cache_spec_kind: "full_attention" or "sliding_window", with the window in `kv_cache_spec_sliding_window`.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = msgspec.field(default_factory=lambda: None)
    medium: str | None = msgspec.field(default_factory=lambda: MEDIUM)
    lora_name: str | None = msgspec.field(default_factory=lambda: None)
    extra_keys: list[tuple[ExtraKey, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """These blocks store something else from now on."""

    block_hashes: list[int]
    medium: str | None = msgspec.field(default_factory=lambda: MEDIUM)
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, gc=False, tag=True):
    """Nothing is cached any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, gc=False):
    """The events of one step, in order; `ts` is the time of the clock on the wall."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None
