"""What a backend of structured output makes of a constraint: a grammar, and parsers that follow texts in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


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


@dataclass(frozen=True)
class Grammar:
    """A compiled constraint.

    Attributes:
        start: gives a parser at the grammar's start.
        num_bytes: tells what it holds in memory by now.
    """

    start: Callable[[], Parser]
    num_bytes: Callable[[], int]
