"""`DraftModel`: guesses the token after the next one, from that one and what the target made of those before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class DraftModel(Protocol):
    """A small model that runs behind a target and shares its cache's blocks.

    One that reads features pairs token t(i + 1) at position i with the features of position i, and keeps its keys and
    values in slot i; the logits there are those of t(i + 2). One that does not is a whole model: at position i it reads
    t(i). T: tokens of a batch; n: some of its rows; D: hidden size.

    Attributes:
        aux_hidden_states: ids of the target's layers whose outputs it reads; empty where it reads the hidden states
            after the last norm.
        target_ids: int64 ``[draft vocabulary]``, the target's token id for each id of the draft; None where both share
            one vocabulary.
        reads_features: see above.
    """

    aux_hidden_states: tuple[int, ...]
    target_ids: torch.Tensor | None
    reads_features: bool

    @property
    def vocab_size(self) -> int:
        """Tokens that it guesses among."""
        ...

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the draft reads of the target's step: ``[T, D]``.

        Args:
            hidden_states: ``[T, D]`` after the target's last norm.
            aux: ``[T, D]`` after each layer of `aux_hidden_states`.
        """
        ...

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """Features ``[T, D]`` for `compute_logits` and for the next draft.

        Args:
            input_ids: int64 ``[T]``, the token after each position; of a whole model the tokens at the positions.
            positions: int64 ``[T]``, those of `features`.
            step: drafts of these requests that were made before in this round, where several layers take turns.
        """
        ...

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """As `forward`, where nobody reads what comes out: what is cached of the tokens has to be written.

        A draft of one layer leaves out what follows its attention.
        """
        ...

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """``[n, D]`` of any rows -> float32 ``[n, draft vocabulary]``, or a rank's columns of it."""
        ...
