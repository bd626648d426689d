"""`SlotPool`: which request has which slots of the layers that keep states."""

from __future__ import annotations

# Stands in a table where a request has no slot: layers read and write nothing there.
NO_SLOT = 0


class SlotPool:
    """Slots ``1 .. num_slots``, which requests hold by so many, side by side; they are named by the first.

    Slots may go to another request at once: steps run in order, and whoever gets them begins from zeros.
    """

    def __init__(self, num_slots: int, slots_each: int) -> None:
        firsts = range(NO_SLOT + 1, num_slots - slots_each + 2, slots_each)
        self._free = list(reversed(firsts))

    @property
    def num_free(self) -> int:
        """Requests that could get slots."""
        return len(self._free)

    def take(self) -> int:
        """The first of free slots; IndexError where there are none."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """The holder of the slots that begin at `slot` has ended, or was preempted."""
        self._free.append(slot)
