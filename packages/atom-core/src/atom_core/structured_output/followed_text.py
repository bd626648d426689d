"""`FollowedText`: the text of a request that follows a grammar, a thinking budget, or both; and what texts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.mask_thread import MaskJob
from atom_core.structured_output.matcher import Matcher
from atom_core.structured_output.thinking import ThinkingParser

# What a parser may hold for each token: ambiguous grammars were measured to take 1,600, JSON takes 200.
TOKEN_BYTES = 1024


@dataclass
class FollowedText:
    """Where one text stands.

    Attributes:
        thinking: set where the text is free once its thinking is over.
        job: its mask is made beside the engine's loop."""

    matcher: Matcher
    grammar: Grammar | None
    thinking: ThinkingParser | None
    job: MaskJob | None = None

    @property
    def num_bytes(self) -> int:
        """What it holds in memory, by an estimate, with its grammar."""
        return self.own_bytes + (0 if self.grammar is None else self.grammar.num_bytes())

    @property
    def own_bytes(self) -> int:
        """What it holds alone: its grammar may be that of others too."""
        return TOKEN_BYTES * self.matcher.num_tokens


def held_bytes(texts: Sequence[FollowedText]) -> int:
    """What texts hold together, by an estimate; a grammar of several counts once."""
    grammars = {id(text.grammar): text.grammar for text in texts if text.grammar is not None}
    return sum(text.own_bytes for text in texts) + sum(grammar.num_bytes() for grammar in grammars.values())
