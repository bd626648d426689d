"""Linears: replicated, split over ranks by columns or rows, and merged ones that run several as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from atom_models.layers.layer import Layer
from atom_models.layers.loadable import ExpectedWeight, SchemeWeights, check_shape, not_loaded
from atom_models.layers.residual import Unsummed
from atom_models.quantization import DENSE_INPUT, InputFormat, LinearScheme, LinearSpec, UnnormedInput

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class Shard:
    """One linear of the checkpoint inside a (merged) layer.

    Attributes:
        name: last component of its name in the checkpoint, such as ``"q_proj"``.
        out_features: over all ranks.
        num_pieces: different equal pieces that the ranks hold of it; fewer than ranks where KV heads are repeated.
            The last one is padded with zeros where they do not divide the outputs.
    """

    name: str
    out_features: int
    num_pieces: int = 1

    @property
    def features_on_rank(self) -> int:
        return -(-self.out_features // self.num_pieces)


@dataclass(frozen=True)
class _Placement:
    """Where a shard's slot lies: rows ``[start, start + size)`` of a part, in units of its outputs."""

    part: SchemeWeights
    slot: str
    start: int
    shard: Shard


class Linear(Layer):
    """``[T, in_features] -> [T, sum of this rank's outputs]``, from one or several linears of the checkpoint.

    Neighboring shards with equal schemes are stacked and run as one plan; others are plans of their own, and their
    outputs are concatenated. `split_input` cuts the weights along their inputs instead; then the bias belongs to
    rank 0 alone, so that the sum over ranks holds it once. A number in the place of shards is one linear, of the
    layer's own name.
    """

    def __init__(
        self,
        in_features: int,
        outputs: Sequence[Shard] | int,
        context: BuildContext,
        *,
        prefix: str,
        bias: bool = False,
        split_input: bool = False,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        parent, _, own_name = prefix.rpartition(".")
        shards = (Shard(own_name, outputs),) if isinstance(outputs, int) else outputs
        self._ranks = context.collectives
        self._split_input = split_input
        self._local_in = context.split(in_features, f"{prefix}: in_features") if split_input else in_features
        self.out_features = sum(shard.features_on_rank for shard in shards)
        self._has_bias = bias and not (split_input and context.collectives.rank > 0)
        self._bias_elsewhere = bias and not self._has_bias
        self._parts: list[SchemeWeights] = []
        self._placements: dict[str, _Placement] = {}
        names = [f"{parent}.{shard.name}" if parent else shard.name for shard in shards]
        schemes = [context.quantization.scheme_for(name) for name in names]
        first = 0
        while first < len(shards):
            last = first + 1
            while last < len(shards) and schemes[last] == schemes[first]:
                last += 1
            self._add_part(names[first:last], shards[first:last], schemes[first], context, out_dtype)
            first = last
        self.ignored_weights = frozenset(
            f"{name}.{suffix}" for name, scheme in zip(names, schemes, strict=True) for suffix in scheme.ignored_weights
        )
        formats = [part.input_format for part in self._parts]
        same = all(other == formats[0] for other in formats)
        self.input_format: InputFormat = formats[0] if same else DENSE_INPUT
        # Up to here the kernel adds a base by itself.
        self._max_rows_to_add = formats[0].max_rows if same and isinstance(formats[0], UnnormedInput) else 0
        self._apply: Callable[..., torch.Tensor] = not_loaded(prefix)

    def _add_part(
        self,
        names: Sequence[str],
        shards: Sequence[Shard],
        scheme: LinearScheme,
        context: BuildContext,
        out_dtype: torch.dtype | None,
    ) -> None:
        sizes = [shard.features_on_rank for shard in shards]
        spec = LinearSpec(self._local_in, sum(sizes), context.dtype, self._has_bias, context.platform, out_dtype)
        part = SchemeWeights(scheme, spec, context.device)
        self._parts.append(part)
        start = 0
        for name, shard, size in zip(names, shards, sizes, strict=True):
            for slot in part.slots:
                self._placements[f"{name}.{slot}"] = _Placement(part, slot, start, shard)
            if self._bias_elsewhere:
                self._placements[f"{name}.bias"] = _Placement(part, "bias", start, shard)
            start += size

    def forward(self, x: Any, base: torch.Tensor | None = None) -> torch.Tensor:
        """``x [T, in_features] -> [T, outputs]``, plus `base` if there is one."""
        if base is None:
            return self._apply(x)
        return self._apply(x, base) if x.shape[0] <= self._max_rows_to_add else self._apply(x) + base

    def end_with_silu_and_mul(self) -> bool:
        """Before loading: asks for ``silu(first half) * second half`` of the outputs; False if it cannot do that."""
        if len(self._parts) > 1 or not isinstance(self.input_format, UnnormedInput):
            return False
        part = self._parts[0]
        part.spec = replace(part.spec, gated=True)
        return True

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {name: self._expected(placement) for name, placement in self._placements.items()}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [slot.shape for part in self._parts for slot in part.slots.values()]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        placement = self._placements[name]
        check_shape(name, tensor, self._expected(placement))
        if placement.slot not in placement.part.slots:
            return
        slot, shard = placement.part.slots[placement.slot], placement.shard
        target = placement.part.tensor(placement.slot)
        if slot.output_dim is not None:
            rows = target.shape[slot.output_dim]
            per_output = rows / placement.part.spec.out_features
            size = round(shard.features_on_rank * per_output)
            first = self._ranks.rank * shard.num_pieces // self._ranks.size * size
            tensor = tensor[(slice(None),) * slot.output_dim + (slice(first, first + size),)]
            target = target.narrow(slot.output_dim, round(placement.start * per_output), tensor.shape[slot.output_dim])
        if self._split_input and slot.input_dim is not None:
            size = target.shape[slot.input_dim]
            tensor = tensor.narrow(slot.input_dim, self._ranks.rank * size, size)
        target.copy_(tensor)

    def finish(self) -> None:
        applies = [part.finish() for part in self._parts]
        if len(applies) == 1:
            self._apply = applies[0]
        else:
            self._apply = lambda x: torch.cat([apply(x) for apply in applies], dim=-1)

    def _expected(self, placement: _Placement) -> ExpectedWeight:
        part, shard = placement.part, placement.shard
        if placement.slot not in part.slots:
            return ExpectedWeight((shard.out_features,), part.spec.dtype)
        slot = part.slots[placement.slot]
        shape = list(slot.shape)
        if slot.output_dim is not None:
            shape[slot.output_dim] = round(shape[slot.output_dim] * shard.out_features / part.spec.out_features)
        if self._split_input and slot.input_dim is not None:
            shape[slot.input_dim] *= self._ranks.size
        return ExpectedWeight(tuple(shape), slot.dtype)


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
    """Query, key and value projections as one; ranks share heads, and repeat KV heads where there are too few.

    Attributes:
        num_heads, num_kv_heads: of this rank.
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
    ) -> None:
        size = context.collectives.size
        if size % num_kv_heads and num_kv_heads % size:
            raise ValueError(
                f"{prefix}: num_key_value_heads is {num_kv_heads}, which {size} ranks can neither share "
                "nor repeat evenly"
            )
        pieces = min(size, num_kv_heads)
        shards = (
            Shard("q_proj", num_heads * head_dim, size),
            Shard("k_proj", num_kv_heads * head_dim, pieces),
            Shard("v_proj", num_kv_heads * head_dim, pieces),
        )
        self_heads, self_kv_heads = context.split(num_heads, f"{prefix}: num_attention_heads"), num_kv_heads // pieces
        super().__init__(in_features, shards, context, prefix=prefix, bias=bias)
        self.num_heads, self.num_kv_heads = self_heads, self_kv_heads
        self.sizes = [self_heads * head_dim, self_kv_heads * head_dim, self_kv_heads * head_dim]


class RowParallelLinear(Linear):
    """A linear whose inputs are split over ranks; the results are summed over them.

    ``forward(x) -> y``; where its kernel can add the residual by itself (few rows on a GPU), y is `Unsummed`.
    """

    def __init__(
        self, in_features: int, out_features: int, context: BuildContext, *, prefix: str, bias: bool = False
    ) -> None:
        super().__init__(in_features, out_features, context, prefix=prefix, bias=bias, split_input=True)

    def forward(self, x: torch.Tensor) -> Any:
        if self._ranks.size > 1:
            return self._ranks.all_reduce(self._apply(x))
        return Unsummed(self._apply, x) if x.shape[0] <= self._max_rows_to_add else self._apply(x)
