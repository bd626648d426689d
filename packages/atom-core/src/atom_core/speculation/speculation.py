"""`Speculation`: how many drafts follow the decodes of a step, and who makes them."""

from __future__ import annotations

from dataclasses import dataclass

from atom_core.speculation.drafter import MakeDrafter


@dataclass(frozen=True)
class Speculation:
    """What an engine's drafts are made by.

    Attributes:
        make_drafter: for each request.
        num_tokens: drafts of a request in one step, at most.
    """

    make_drafter: MakeDrafter
    num_tokens: int
