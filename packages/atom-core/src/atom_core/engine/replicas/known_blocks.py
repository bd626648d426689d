"""`KnownBlocks`: the blocks that one engine was sent, by name, as far as its cache may still have them."""

from __future__ import annotations

from collections.abc import Sequence


class KnownBlocks:
    """A table of names with the size of the engine's cache: what was used longest ago is forgotten, as it does.

    Args:
        num_blocks: names at most.
    """

    def __init__(self, num_blocks: int) -> None:
        self._most = num_blocks
        # A dict keeps the order in which names were used.
        self._names: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._names)

    def num_leading(self, names: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from its first on, are known."""
        return next((index for index, name in enumerate(names) if name not in self._names), len(names))

    def add(self, names: Sequence[bytes]) -> None:
        """A prompt with these blocks was sent. Its last block is forgotten first: no other serves without the first."""
        for name in reversed(names[: self._most]):
            self._names.pop(name, None)
            self._names[name] = None
        while len(self._names) > self._most:
            del self._names[next(iter(self._names))]

    def clear(self) -> None:
        """Forget all of them."""
        self._names.clear()
