"""`KVEventRecorder`: what happens to cached blocks between two steps, as events."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, KVEvent
from atom_kernels.protocols import GroupSpec, Pages


class KVEventRecorder:
    """Blocks that follow each other are told together. Slots of states are not told: vLLM has no word for them.

    Args:
        block_size: tokens of a block.
        groups: what each group of layers keeps.
    """

    def __init__(self, block_size: int, groups: Sequence[GroupSpec]) -> None:
        self._block_size, self._groups = block_size, tuple(groups)
        self._events: list[KVEvent] = []

    def stored(
        self,
        group: int,
        name: bytes,
        parent: bytes | str,
        token_ids: Sequence[int],
        images: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """A block is cached.

        Args:
            parent: the name of the one before it, or the salt of the prompt that it begins.
            token_ids: its tokens, and maybe the one behind them.
            images: the digests of pictures in it, and where these begin, counted from its first token.
        """
        spec = self._groups[group]
        if not isinstance(spec, Pages):
            return
        tokens = list(token_ids[: self._block_size])
        before = None if isinstance(parent, str) else number_of(parent)
        keys = self._extra_keys(parent, images)
        last = self._events[-1] if self._events else None
        if (
            before is not None
            and isinstance(last, BlockStored)
            and (last.group_idx, last.block_hashes[-1]) == (group, before)
        ):
            last.block_hashes.append(number_of(name))
            last.token_ids += tokens
            if keys is not None or last.extra_keys is not None:
                earlier = last.extra_keys or [None] * (len(last.block_hashes) - 1)
                last.extra_keys = [*earlier, keys]
            return
        self._events.append(
            BlockStored(
                [number_of(name)],
                before,
                tokens,
                self._block_size,
                extra_keys=None if keys is None else [keys],
                group_idx=group,
                kv_cache_spec_kind="full_attention" if spec.window is None else "sliding_window",
                kv_cache_spec_sliding_window=spec.window,
            )
        )

    def _extra_keys(self, parent: bytes | str, images: Sequence[tuple[bytes, int]]) -> tuple[ExtraKey, ...] | None:
        """What the block's name covers beside tokens; a picture that begins with the next block is none of this one."""
        pictures = ((digest.hex(), offset) for digest, offset in images if offset < self._block_size)
        return (*pictures, *([parent] if parent and isinstance(parent, str) else [])) or None

    def removed(self, group: int, name: bytes) -> None:
        """A block is not cached any more."""
        if not isinstance(self._groups[group], Pages):
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.group_idx == group:
            last.block_hashes.append(number_of(name))
        else:
            self._events.append(BlockRemoved([number_of(name)], group_idx=group))

    def cleared(self) -> None:
        """Nothing is cached any more, so what happened before is no matter."""
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KVEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events


def number_of(name: bytes) -> int:
    """A name as routers know it: its last 64 bits."""
    return int.from_bytes(name[-8:], "big")
