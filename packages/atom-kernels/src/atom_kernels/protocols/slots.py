"""`Slots`: a layer keeps a state of each request, of one size however long the request is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


def slot_of_state(first: Any, num_tokens: Any, slots_each: int) -> Any:
    """Which of a request's `slots_each` slots has the state behind its first `num_tokens` tokens.

    Slots take turns, token by token. So a step that verifies up to ``slots_each - 1`` drafts keeps the state behind
    each, and the next one finds the state behind the last accepted one by its number of tokens: nothing is copied.

    Args:
        first: the first of the slots; a number, or a tensor with those of several requests.
        num_tokens: alike.
    """
    return first + num_tokens % slots_each


@dataclass(frozen=True)
class Slots:
    """The `GroupSpec` of layers with a recurrent state: a request holds slots, and no blocks.

    A state cannot be taken back to an earlier token, so where drafts may be rejected the states behind each of them
    are kept, where `slot_of_state` says.

    Attributes:
        slots_each: slots that a request holds: one, and one for each draft that a step may verify.
        hand_over: a state that goes from one step to the next behind a multiple of so many tokens leaves no trace in
            any bit (see `atom_kernels.delta.contract.gated_delta`).
    """

    # States behind cached prefixes take this part of a cache's memory at most.
    snapshot_part: ClassVar[int] = 4
    # So many rows of a request are computed token by token, and no more states can be kept of a step.
    most_each: ClassVar[int] = 16

    slots_each: int = 1
    hand_over: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.slots_each <= self.most_each:
            raise ValueError(f"slots_each is {self.slots_each}; a request holds from 1 to {self.most_each} slots")

    @property
    def in_slots(self) -> bool:
        return True

    @property
    def keeps_all(self) -> bool:
        return False

    def within(self, max_model_len: int) -> Slots:
        return self

    def first_needed(self, num_tokens: int, block_size: int) -> int:
        """The last block: a prefix can be gone on from where the state behind it was kept."""
        return max(num_tokens // block_size - 1, 0)

    def num_at_first(self, num_tokens: int, num_found: int, block_size: int, step_tokens: int) -> int:
        """None: the slot comes from a pool of its own."""
        return 0

    def most_blocks(self, num_tokens: int, block_size: int, step_tokens: int) -> int:
        """None: the slot comes from a pool of its own."""
        return 0

    def tokens_kept(self, num_tokens: int, block_size: int) -> int:
        """One for each slot: a state takes what its layout says of a block, which has one token."""
        return self.slots_each

    def describe(self) -> str | None:
        if self.slots_each == 1:
            return "one state a request, whatever its length"
        return f"{self.slots_each} states a request, whatever its length: one, and one for each draft"
