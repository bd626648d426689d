"""`SlotPool`: which request has which slot of the layers that keep one state a request."""

from __future__ import annotations

# Stands in a table where a request has no slot: layers read and write nothing there.
NO_SLOT = 0


class SlotPool:
    """Slots ``1 .. num_slots``.

    A slot may go to another request at once: steps run in order, and whoever gets it begins from zeros.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots, NO_SLOT, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free slot; IndexError where there is none."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Its holder has ended, or was preempted."""
        self._free.append(slot)
