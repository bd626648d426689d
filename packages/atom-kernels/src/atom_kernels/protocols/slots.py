"""`Slots`: a layer keeps a state of each request, of one size however long the request is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slots:
    """The `GroupSpec` of layers with a recurrent state: a request holds one slot, and no blocks.

    Attributes:
        hand_over: a state that goes from one step to the next behind a multiple of so many tokens leaves no trace in
            any bit (see `atom_kernels.delta.contract.gated_delta`).
    """

    hand_over: int = 64

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
        """One: a state takes what its layout says of a block, which has one token."""
        return 1

    def describe(self) -> str | None:
        return "one state a request, whatever its length"
