"""Token embedding, and the head that turns hidden states into logits; both may be split over ranks by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.embedding import OP, EmbeddingProblem
from atom_kernels.select import select
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.layers.matrices import StoredMatrix
from atom_models.layers.scheme_weights import SchemeWeights
from atom_models.quantization import ExpectedWeight, LinearSpec
from atom_models.quantization.layouts import PlainLayout

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class VocabularyEmbedding(nn.Module):
    """Token ids [T] -> rows [T, D]. Each rank holds an equal run of ids, the last one padded with zeros."""

    ignored_weights: frozenset[str] = frozenset()

    def __init__(self, vocab_size: int, hidden_size: int, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self._ranks, self._context = context.collectives, context
        self._name = f"{prefix}.weight"
        self._rows = -(-vocab_size // self._ranks.size)
        self._table: torch.Tensor | None = None
        self._heads: list[LMHead] = []
        self._lookup: Callable[[torch.Tensor], torch.Tensor] = not_loaded(prefix)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = self._lookup(input_ids)
        return self._ranks.all_reduce(rows) if self._ranks.size > 1 else rows

    def share_with(self, head: LMHead) -> None:
        """Makes `head` use this table as its weight, once it is loaded."""
        self._heads.append(head)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {self._name: ExpectedWeight((self.vocab_size, self.hidden_size), self._context.dtype)}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [(self._rows, self.hidden_size)]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        self._table = _rows_of_rank(tensor, self._rows, self._context)

    def finish(self) -> None:
        table, self._table = self._table, None
        if table is None:
            raise RuntimeError(f"{self._name} was never loaded")
        first_id = self._ranks.rank * self._rows if self._ranks.size > 1 else None
        problem = EmbeddingProblem(self._rows, self.hidden_size, self._context.dtype, first_id)
        self._lookup = select(OP, problem, self._context.platform).prepare({"weight": table})
        for head in self._heads:
            head.finish_with(table)


class LMHead(nn.Module):
    """Hidden states [n, D] -> float32 logits [n, vocabulary], whole on every rank.

    With `tied_to` it has no weights of its own and uses that embedding's.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        context: BuildContext,
        *,
        prefix: str = "lm_head",
        tied_to: VocabularyEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self._ranks, self._context, self._prefix = context.collectives, context, prefix
        self._rows = -(-vocab_size // self._ranks.size)
        quantization = context.quantization.for_layer(prefix, context.dtype)
        first = min(self._ranks.rank * self._rows, vocab_size)
        rows = (first, min(first + self._rows, vocab_size))
        matrix = StoredMatrix(prefix, quantization.stored, (vocab_size, hidden_size), rows, (0, hidden_size))
        spec = LinearSpec(hidden_size, self._rows, context.dtype, False, context.platform, out_dtype=torch.float32)
        self._weights = SchemeWeights(quantization.scheme, spec, (matrix,), context.device)
        self._tied = tied_to is not None
        # Some checkpoints store the tied weight twice.
        ignored = ("weight",) if self._tied else quantization.stored.ignored
        self.ignored_weights = frozenset(f"{prefix}.{suffix}" for suffix in ignored)
        self._project: Callable[[Any], torch.Tensor] = not_loaded(prefix)
        if tied_to is not None:
            if quantization.stored != PlainLayout(context.dtype):
                raise ValueError(
                    f"{prefix} is tied to the embedding and cannot be stored as {quantization.stored.name}: skip it"
                )
            tied_to.share_with(self)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = self._project(hidden_states)
        if self._ranks.size > 1:
            logits = self._ranks.all_gather(logits, dim=-1)[..., : self.vocab_size]
        return logits.float()

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {} if self._tied else self._weights.matrices.expected_weights()

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [] if self._tied else self._weights.shapes()

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        self._weights.matrices.load(name, tensor)

    def finish(self) -> None:
        if not self._tied:
            self._project = self._weights.finish()

    def finish_with(self, table: torch.Tensor) -> None:
        """Uses this rank's rows of the tied embedding."""
        self._project = self._weights.finish(tied=table)


def _rows_of_rank(tensor: torch.Tensor, rows: int, context: BuildContext) -> torch.Tensor:
    start = context.collectives.rank * rows
    part = tensor[start : start + rows]
    if part.shape[0] == rows:
        return part.to(device=context.device, dtype=context.dtype, copy=True)
    table = torch.zeros(rows, tensor.shape[1], dtype=context.dtype, device=context.device)
    table[: part.shape[0]].copy_(part)
    return table
