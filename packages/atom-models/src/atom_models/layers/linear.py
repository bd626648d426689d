"""Linears: replicated, split over ranks by columns or rows, and merged ones that run several as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import torch

from atom_kernels.linear import LinearProblem
from atom_models.adapters.adapted_linear import AdaptedLinear
from atom_models.adapters.linear_part import LinearPart
from atom_models.layers.layer import Layer
from atom_models.layers.linear_weights import LinearWeights, max_fused_rows, max_normed_rows, most_rows_with_term
from atom_models.layers.loadable import not_loaded
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.layers.norms.residual import Normed, Term, Unsummed
from atom_models.layers.rank_sum import RankSum
from atom_models.layers.shard import Shard
from atom_models.layers.weights import Weights
from atom_models.quantization import UNQUANTIZED, LayerQuantization

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class Linear(Layer):
    """``[T, in_features] -> [T, sum of this rank's outputs]``, from one or several linears of the checkpoint.

    Neighboring shards that are held alike are stacked and run as one plan; others are plans of their own, and their
    outputs are concatenated. `columns` are the inputs (first, last + 1) that this rank has, where ranks share those
    instead; then the bias belongs to rank 0 alone, so that the sum over ranks holds it once. A number in the place of
    shards is one linear, of the layer's own name. One that is not `quantized` holds plain numbers, whatever the
    model's quantization says. One that is not `adaptable` takes no adapters, whatever the context says.

    Attributes:
        max_fused_rows: up to so many rows its kernel adds a base by itself.
        max_normed_rows: up to so many rows its kernel norms x by itself.
        row_rounding: how x may come rounded by another kernel; None if it may not.
        adapted: what adapters add to it; None where it takes none.
    """

    def __init__(
        self,
        in_features: int,
        outputs: Sequence[Shard] | int,
        context: BuildContext,
        *,
        prefix: str,
        bias: bool = False,
        columns: tuple[int, int] | None = None,
        out_dtype: torch.dtype | None = None,
        quantized: bool = True,
        adaptable: bool = True,
    ) -> None:
        super().__init__()
        parent, _, own_name = prefix.rpartition(".")
        shards = (Shard(own_name, outputs),) if isinstance(outputs, int) else outputs
        self._ranks, self._platform = context.collectives, context.platform
        self._in_features, self._columns = in_features, columns or (0, in_features)
        self.out_features = sum(shard.features_on_rank for shard in shards)
        self._has_bias = bias and (columns is None or context.collectives.rank == 0)
        self._parts: list[LinearWeights] = []
        self._owners: dict[str, MatrixStack] = {}
        self._ignored: set[str] = set()
        named = {f"{parent}.{shard.name}" if parent else shard.name: shard for shard in shards}
        self._quantized, quantization = quantized, context.quantization if quantized else UNQUANTIZED
        for found, group in groupby(named.items(), lambda item: quantization.for_layer(item[0], context.dtype)):
            self._stack(found, dict(group), context, context.dtype if bias else None, out_dtype)
        self.adapted: AdaptedLinear | None = None
        if adaptable and context.takes_adapters:
            parts = self._parts_with_names(named)
            self.adapted = AdaptedLinear(parts, context.dtype, context.device, context.platform)
        self._find_most_rows()
        self._apply: Callable[..., torch.Tensor] = not_loaded(prefix)

    def _stack(
        self,
        quantization: LayerQuantization,
        shards: Mapping[str, Shard],
        context: BuildContext,
        bias: torch.dtype | None,
        out_dtype: torch.dtype | None,
    ) -> None:
        matrices = [
            StoredMatrix(
                name,
                quantization.stored,
                (shard.out_features, self._in_features),
                self._rows_of_rank(shard),
                self._columns,
                bias=bias,
            )
            for name, shard in shards.items()
        ]
        num_outputs = sum(shard.features_on_rank for shard in shards.values())
        first, last = self._columns
        plain = LinearProblem(last - first, num_outputs, context.dtype, self._has_bias, out_dtype)
        part = LinearWeights(plain, quantization.held, matrices, platform=context.platform, device=context.device)
        self._parts.append(part)
        self._owners.update(dict.fromkeys(part.matrices.expected(), part.matrices))
        self._ignored |= {f"{name}.{suffix}" for name in shards for suffix in quantization.stored.ignored}

    def _parts_with_names(self, named: Mapping[str, Shard]) -> list[LinearPart]:
        begins = accumulate((shard.features_on_rank for shard in named.values()), initial=0)
        return [
            LinearPart(
                *(name, (self._in_features, shard.out_features), self._columns, self._rows_of_rank(shard)), begin=begin
            )
            for (name, shard), begin in zip(named.items(), begins, strict=False)
        ]

    @property
    def rounds_as_asked(self) -> bool:
        """Whether rows that the checkpoint leaves as they are get rounded, because the environment asks for it."""
        return any(part.rounds_as_asked for part in self._parts)

    def _find_most_rows(self) -> None:
        if self.adapted is not None and len(self._parts) > 1:
            # The adapters' term is one for all parts.
            self.max_fused_rows, self.max_normed_rows, self.row_rounding = 0, 0, None
            return
        limits = {(max_fused_rows(part.plan), max_normed_rows(part.plan, self._platform)) for part in self._parts}
        self.max_fused_rows, self.max_normed_rows = limits.pop() if len(limits) == 1 else (0, 0)
        roundings = {part.plan.row_rounding for part in self._parts}
        # Adapters multiply rows as they were before they were rounded.
        self.row_rounding = roundings.pop() if len(roundings) == 1 and self.adapted is None else None

    def _rows_of_rank(self, shard: Shard) -> tuple[tuple[int, int], ...]:
        if shard.order:
            return shard.order
        size, piece = shard.features_on_rank, self._ranks.rank * shard.num_pieces // self._ranks.size
        return ((min(piece * size, shard.out_features), min((piece + 1) * size, shard.out_features)),)

    def forward(self, x: Normed, base: torch.Tensor | None = None) -> torch.Tensor:
        """``x [T, in_features] -> [T, outputs]``, plus `base` if there is one."""
        if base is None:
            return self._apply(x)
        return self._apply(x, base) if x.shape[0] <= self.max_fused_rows else self._apply(x) + base

    def end_with_silu_and_mul(self) -> bool:
        """Before loading: asks for ``silu(first half) * second half`` of the outputs; False if it cannot do that."""
        if len(self._parts) > 1 or not self.max_fused_rows:
            return False
        self._parts[0].end_with_silu_and_mul()
        self._find_most_rows()
        return True

    def weights(self) -> list[Weights]:
        return [part.weights(self._quantized) for part in self._parts]

    def ignored_weights(self) -> frozenset[str]:
        return frozenset(self._ignored)

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        self._owners[name].load(name, tensor)

    def finish(self) -> None:
        applies = [part.finish() for part in self._parts]
        if len(applies) == 1:
            self._apply = applies[0]
        else:
            self._apply = lambda x: torch.cat([apply(x) for apply in applies], dim=-1)
        if self.adapted is not None:
            plan = self._parts[0].plan
            most_rows = most_rows_with_term(plan) if len(applies) == 1 else 0
            takes_residual = plan.problem.neighbors
            self._apply = self.adapted.around(self._apply, most_rows=most_rows, takes_residual=takes_residual)


class ReplicatedLinear(Linear):
    """The whole linear on every rank."""


class MergedColumnParallelLinear(Linear):
    """Several linears of one input, stacked: each rank holds its share of the outputs of each.

    Args:
        shards: name in the checkpoint -> outputs over all ranks, in the order of the result.
    """

    def __init__(
        self,
        in_features: int,
        shards: Mapping[str, int],
        context: BuildContext,
        *,
        prefix: str,
        bias: bool = False,
    ) -> None:
        parts = []
        for name, size in shards.items():
            context.split(size, f"{prefix}: out_features of {name}")
            parts.append(Shard(name, size, context.collectives.size))
        super().__init__(in_features, parts, context, prefix=prefix, bias=bias)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One linear of which each rank computes its share of the outputs."""

    def __init__(
        self, in_features: int, out_features: int, context: BuildContext, *, prefix: str, bias: bool = False
    ) -> None:
        name = prefix.rpartition(".")[2]
        super().__init__(in_features, {name: out_features}, context, prefix=prefix, bias=bias)


class QKVParallelLinear(Linear):
    """Query, key and value projections as one; ranks share KV heads with the queries of each, or repeat KV heads.

    Where KV heads do not come out even, the first ranks have one more.

    Args:
        evenly: every rank must have as many, since others of the layer's weights are shared so.

    Attributes:
        num_heads, num_kv_heads: how many heads this rank has.
        query_elements: its queries among those of all ranks, as (first, last + 1).
        sizes: elements of q, k and v in a row of the output.
    """

    def __init__(
        self,
        in_features: int,
        *,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        context: BuildContext,
        prefix: str,
        bias: bool = False,
        evenly: bool = False,
    ) -> None:
        if evenly and num_kv_heads >= context.collectives.size:
            context.split(num_kv_heads, f"{prefix}: num_key_value_heads")
        kv_heads, heads = _heads_of_rank(num_heads, num_kv_heads, context, prefix)
        queries, keys = ((first * head_dim, last * head_dim) for first, last in (heads, kv_heads))
        shards = (
            Shard("q_proj", num_heads * head_dim, order=(queries,)),
            Shard("k_proj", num_kv_heads * head_dim, order=(keys,)),
            Shard("v_proj", num_kv_heads * head_dim, order=(keys,)),
        )
        super().__init__(in_features, shards, context, prefix=prefix, bias=bias)
        self.num_heads, self.num_kv_heads = heads[1] - heads[0], kv_heads[1] - kv_heads[0]
        self.query_elements = queries
        self.sizes = [shard.features_on_rank for shard in shards]


def _heads_of_rank(
    num_heads: int, num_kv_heads: int, context: BuildContext, prefix: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Runs of KV heads and of query heads that a rank has."""
    size = context.collectives.size
    if num_kv_heads < size:
        if size % num_kv_heads:
            raise ValueError(
                f"{prefix}: num_key_value_heads is {num_kv_heads}, which {size} ranks can neither share "
                "nor repeat evenly"
            )
        kv_head = context.collectives.rank * num_kv_heads // size
        return (kv_head, kv_head + 1), context.even_run(num_heads, f"{prefix}: num_attention_heads")
    first, last = context.run(num_kv_heads)
    queries_each = num_heads // num_kv_heads
    return (first, last), (first * queries_each, last * queries_each)


class RowParallelLinear(Linear):
    """A linear whose inputs are split over ranks; the results are summed over them.

    Ranks share the inputs evenly, unless `columns` (first, last + 1) says which ones this rank has.

    ``forward(x) -> y``; where its kernel can add the residual by itself (few rows on a GPU), y is `Unsummed`. Where
    ranks sum by a kernel of ours, which may add the residual and norm as well, it is `Unreduced`;
    `Sent` where parts of many rows are on their way already.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        context: BuildContext,
        *,
        prefix: str,
        bias: bool = False,
        columns: tuple[int, int] | None = None,
    ) -> None:
        columns = columns or context.even_run(in_features, f"{prefix}: in_features")
        super().__init__(in_features, out_features, context, prefix=prefix, bias=bias, columns=columns)
        self._sum = RankSum(out_features, context)

    def forward(self, x: torch.Tensor) -> Term:
        if self._ranks.size > 1:
            # Rows that came rounded, and those of a step's adapters, belong together.
            is_apart = isinstance(x, torch.Tensor) and self.adapted is None
            if is_apart and (send := self._sum.sender(x.shape[0])):
                return send(lambda run: self._apply(x[run]))
            return self._sum(self._apply(x))
        return Unsummed(self._apply, x) if x.shape[0] <= self.max_fused_rows else self._apply(x)
