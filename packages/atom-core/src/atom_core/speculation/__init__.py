"""Speculative decoding: tokens are guessed, and verified several in a step. No guess can change what is generated."""

from atom_core.speculation.drafter import Drafter, MakeDrafter
from atom_core.speculation.speculation import Speculation

__all__ = ["Drafter", "MakeDrafter", "Speculation"]
