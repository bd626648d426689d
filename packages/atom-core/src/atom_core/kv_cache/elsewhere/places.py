"""`Places`: which block's contents each place of one kind of memory has, and which of them go next."""

from __future__ import annotations

from collections import OrderedDict

from atom_core.kv_cache.elsewhere.protocol import BlockKey


class Places:
    """Places ``first .. first + count - 1``. The one unused for longest is taken first, of those that nobody pins.

    A place that is pinned is read or written by a transfer that has not ended. What is spare, since it is elsewhere
    too, goes before all that is not.
    """

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._free = list(range(first + count - 1, first - 1, -1))
        self._keys: dict[int, BlockKey] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_spare: OrderedDict[int, None] = OrderedDict()
        self._spare: set[int] = set()
        self._pins: dict[int, int] = {}

    def __len__(self) -> int:
        """Places that have something."""
        return len(self._keys)

    def take(self, key: BlockKey) -> tuple[int, BlockKey | None] | None:
        """A place for `key`, and what is lost there; None where all are pinned."""
        lost: BlockKey | None = None
        if self._free:
            place = self._free.pop()
        elif idle := self._idle_spare or self._idle:
            place = next(iter(idle))
            lost = self._keys[place]
            self.set_spare(place, False)
        else:
            return None
        self._keys[place] = key
        self.touch(place)
        return place, lost

    def touch(self, place: int) -> None:
        """It is the one used last."""
        if place not in self._pins:
            self._not_idle(place)
            (self._idle_spare if place in self._spare else self._idle)[place] = None

    def set_spare(self, place: int, is_spare: bool) -> None:
        """What it has is elsewhere too, or no longer; and it is the one used last."""
        (self._spare.add if is_spare else self._spare.discard)(place)
        self.touch(place)

    def pin(self, place: int) -> None:
        """A transfer uses it."""
        self._not_idle(place)
        self._pins[place] = self._pins.get(place, 0) + 1

    def unpin(self, place: int) -> None:
        """A transfer has ended."""
        self._pins[place] -= 1
        if not self._pins[place]:
            del self._pins[place]
            if place in self._keys:
                self.touch(place)
            else:
                self._free.append(place)

    def free(self, place: int) -> None:
        """What it has is of no use any more."""
        del self._keys[place]
        self._spare.discard(place)
        if place not in self._pins:
            self._not_idle(place)
            self._free.append(place)

    def _not_idle(self, place: int) -> None:
        self._idle.pop(place, None)
        self._idle_spare.pop(place, None)
