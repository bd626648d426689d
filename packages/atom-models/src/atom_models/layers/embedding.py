"""Token embedding, and the head that turns hidden states into logits; both may be split over ranks by vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from atom_kernels.embedding import OP, EmbeddingProblem
from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.operator import SOURCE
from atom_kernels.plan import Plan
from atom_kernels.select import select
from atom_models.adapters.adapted_linear import AdaptedLinear
from atom_models.adapters.linear_part import LinearPart
from atom_models.layers.linear import Linear
from atom_models.layers.loadable import not_loaded
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.layers.norms.residual import summed
from atom_models.layers.rank_sum import RankSum
from atom_models.layers.shard import Shard
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.layers.weights import HeldWeights, Weights
from atom_models.quantization.layouts import PlainLayout

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class VocabularyEmbedding(WeightedLayer):
    """Token ids [T] -> rows [T, D]. Each rank holds an equal run of ids, the last one padded with zeros.

    Args:
        adaptable: adapters may add to its rows, if the context says so; each rank has all of what they add.

    Attributes:
        adapted: what adapters add to it; None where it takes none.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, context: BuildContext, *, prefix: str, adaptable: bool = False
    ) -> None:
        super().__init__(context)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self._ranks, self._sum = context.collectives, RankSum(hidden_size, context)
        self.expect(f"{prefix}.weight", (vocab_size, hidden_size), num_pieces=self._ranks.size)
        self._name, self._stored = prefix, context.quantization.stored_table(prefix, context.dtype)
        self.adapted: AdaptedLinear | None = None
        if adaptable and context.takes_adapters:
            part = LinearPart(prefix, (vocab_size, hidden_size), (0, vocab_size), ((0, hidden_size),), begin=0)
            self.adapted = AdaptedLinear([part], context.dtype, context.device, context.platform)
        self._packed: MatrixStack | None = None
        self._heads: list[LMHead] = []
        self._lookup: Callable[[torch.Tensor], torch.Tensor] = not_loaded(prefix)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = summed(self._sum(self._lookup(input_ids)))
        return rows if self.adapted is None else self.adapted.add_of_rows(rows, input_ids)

    def share_with(self, head: LMHead) -> None:
        """Makes `head` use this table as its weight, once it is loaded."""
        self._heads.append(head)
        if self._packed is not None:
            head.hold_in(self._packed.weight_format)
        elif not isinstance(self._stored, PlainLayout):
            self._pack_with(head)

    def _pack_with(self, head: LMHead) -> None:
        """Holds the table as it is stored, if the head can multiply it so: looking rows up alone would not pay."""
        height = -(-self.vocab_size // self._ranks.size)
        rows = (min(self._ranks.rank * height, self.vocab_size), min((self._ranks.rank + 1) * height, self.vocab_size))
        shape, columns = (self.vocab_size, self.hidden_size), (0, self.hidden_size)
        matrix = StoredMatrix(self._name, self._stored, shape, (rows,), columns)
        stack = MatrixStack((matrix,), self._context.device, num_rows=height)
        if head.hold_in(stack.weight_format):
            self._slots.clear()
            self._packed = self._matrices["weight"] = stack

    def weights(self) -> list[Weights]:
        [own] = super().weights()
        rows = own.on_rank[0].shape[0]
        layout = PlainLayout(self._context.dtype) if self._packed is None else self._stored
        held = HeldWeights.run_by(self._plan(rows), self._problem(rows).weight_format.name)
        return [replace(own, names=(self._name,), layouts=(layout,), held=lambda: held)]

    def _problem(self, num_rows: int) -> EmbeddingProblem:
        first_id = self._ranks.rank * num_rows if self._ranks.size > 1 else None
        held = Plain(self._context.dtype) if self._packed is None else self._packed.weight_format
        return EmbeddingProblem(num_rows, self.hidden_size, self._context.dtype, first_id, held)

    def _plan(self, num_rows: int) -> Plan:
        return select(OP, self._problem(num_rows), self._context.platform)

    def finish(self) -> None:
        if self._packed is None:
            super().finish()
        else:
            self.pack(self._packed.take(self._packed.weight_format))

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._lookup = self._plan(weights["weight"].shape[0]).prepare(weights)
        for head in self._heads:
            head.finish_with(weights)


class LMHead(Linear):
    """Hidden states [n, D] -> float32 logits [n, vocabulary]; of several ranks each gives the columns of its own ids.

    `SharedVocabulary` has what ranks exchange of them.

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
        shard = Shard(prefix.rpartition(".")[2], vocab_size, context.collectives.size)
        super().__init__(hidden_size, (shard,), context, prefix=prefix, out_dtype=torch.float32, adaptable=False)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self._tied = tied_to is not None
        if tied_to is None:
            return
        stored = context.quantization.for_layer(prefix, context.dtype).stored
        if stored != PlainLayout(context.dtype):
            raise ValueError(f"{prefix} is tied to the embedding and cannot be stored as {stored.name}: skip it")
        # Some checkpoints store the tied weight twice.
        self._ignored = set(self._owners)
        tied_to.share_with(self)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._apply(hidden_states).float()

    def weights(self) -> list[Weights]:
        [weights] = super().weights()
        if not self._tied:
            return [weights]
        return [replace(weights, expected=dict, on_rank=(), layouts=(), held=self._held_of_table)]

    def _held_of_table(self) -> HeldWeights:
        """The embedding counts the table. A copy of it in another layout is the head's own."""
        plan = self._parts[0].plan
        own_bytes = sum(size for layout, size in plan.layouts if layout != SOURCE.name)
        return replace(HeldWeights.run_by(plan, self._parts[0].problem.weight_format.name), num_bytes=own_bytes)

    def finish(self) -> None:
        if not self._tied:
            super().finish()

    def hold_in(self, weight_format: WeightFormat) -> bool:
        """Before loading: takes on the format of the tied embedding, if a kernel reads it."""
        return self._parts[0].hold_in(weight_format)

    def finish_with(self, table: Mapping[str, torch.Tensor]) -> None:
        """Uses this rank's rows of the tied embedding, which is plain or in the format that was taken on."""
        self._apply = self._parts[0].finish(tied=table)
