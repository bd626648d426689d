"""What a backend of structured output is: it makes a grammar of a constraint, and follows texts in it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from atom_core.messages import StructuredOutputParams


class Parser(Protocol):
    """Where one text stands in its grammar."""

    def fill(self, words: np.ndarray) -> None:
        """Write the tokens that may come next into int32 ``[ceil(vocab / 32)]``; bit ``i % 32`` of word ``i // 32``."""
        ...

    def accept(self, token_id: int) -> None:
        """Follow a token; see `error` for one that the grammar does not take."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is complete."""
        ...

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, None while it can."""
        ...


class Grammar(Protocol):
    """A compiled constraint. `num_bytes` is what it holds in memory, as far as the library tells."""

    num_bytes: int

    def start(self) -> Parser:
        """A parser at the grammar's start."""
        ...


class Backend(Protocol):
    """A library over one vocabulary. `name` is that of the setting."""

    name: str

    def compile(self, params: StructuredOutputParams) -> Grammar:
        """Compile a constraint that passed `check_limits`; any thread may.

        Raises:
            GrammarError: the constraint is not sound, or not one that this backend knows.
        """
        ...
