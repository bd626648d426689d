"""What every language model of this package can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from atom_models.build_context import BuildContext


class CausalLM(Protocol):
    """A decoder that hosts can run. T: tokens of all requests of a step, one after the other; D: hidden size."""

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None: ...

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, D]."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """Hidden states [T, D] after the last norm; positions are int64 [T] or [3, T].

        With `aux_hidden_states` in the build context: (hidden states, list of [T, D] after each of those layers).
        """
        ...

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, D] of any rows -> float32 [n, vocabulary]."""
        ...
