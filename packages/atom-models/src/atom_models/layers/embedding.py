"""Token embedding, and the head that turns hidden states into logits; both may be split over ranks by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.embedding import OP, EmbeddingProblem
from atom_kernels.select import select
from atom_models.layers.loadable import ExpectedWeight, SchemeWeights, check_shape, not_loaded
from atom_models.quantization import LinearSpec

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
        scheme = context.quantization.scheme_for(prefix)
        spec = LinearSpec(hidden_size, self._rows, context.dtype, False, context.platform, out_dtype=torch.float32)
        self._weights = SchemeWeights(scheme, spec, context.device)
        self._tied = tied_to is not None
        # Some checkpoints store the tied weight twice.
        self.ignored_weights = frozenset({f"{prefix}.weight"} if self._tied else ())
        self._project: Callable[[Any], torch.Tensor] = not_loaded(prefix)
        if tied_to is not None:
            if set(self._weights.slots) != {"weight"}:
                raise ValueError(f"{prefix} is tied to the embedding and cannot use the scheme {scheme.name}: skip it")
            tied_to.share_with(self)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = self._project(hidden_states)
        if self._ranks.size > 1:
            logits = self._ranks.all_gather(logits, dim=-1)[..., : self.vocab_size]
        return logits.float()

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        if self._tied:
            return {}
        expected = {}
        for slot_name, slot in self._weights.slots.items():
            shape = list(slot.shape)
            if slot.output_dim is not None:
                shape[slot.output_dim] = self.vocab_size
            expected[f"{self._prefix}.{slot_name}"] = ExpectedWeight(tuple(shape), slot.dtype)
        return expected

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [] if self._tied else [slot.shape for slot in self._weights.slots.values()]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        slot_name = name.removeprefix(self._prefix + ".")
        target = self._weights.tensor(slot_name)
        start = self._ranks.rank * self._rows if self._weights.slots[slot_name].output_dim == 0 else 0
        part = tensor[start : start + target.shape[0]]
        target[: part.shape[0]].copy_(part)

    def finish(self) -> None:
        if not self._tied:
            self._project = self._weights.finish()

    def finish_with(self, table: torch.Tensor) -> None:
        """Uses this rank's rows of the tied embedding."""
        self._weights.fill("weight", table)
        self._project = self._weights.finish()


def _rows_of_rank(tensor: torch.Tensor, rows: int, context: BuildContext) -> torch.Tensor:
    start = context.collectives.rank * rows
    part = tensor[start : start + rows]
    if part.shape[0] == rows:
        return part.to(device=context.device, dtype=context.dtype, copy=True)
    table = torch.zeros(rows, tensor.shape[1], dtype=context.dtype, device=context.device)
    table[: part.shape[0]].copy_(part)
    return table
