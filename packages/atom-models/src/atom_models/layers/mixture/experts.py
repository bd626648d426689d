"""The experts of a mixture: their weights under every name that checkpoints use, and one grouped computation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from atom_kernels.activation import check_activation
from atom_kernels.formats import Plain, WeightFormat, num_bytes
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.layers.held_weights import HeldWeights
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import RankWeight, check_shape, not_loaded
from atom_models.layers.mixture.expert_stack import ExpertStack, RankPart, StoredExpertMatrix, format_on_rank
from atom_models.quantization import ExpectedWeight, HeldFormat
from atom_models.quantization.experts_plan import packed_experts
from atom_models.quantization.layouts import PlainLayout

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig

# Names of gate, up and down where each expert is stored by itself.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_SLOTS = ("gate_up", "down")
_BIAS = "bias"


@dataclass(frozen=True)
class _Matrix:
    """A matrix of the checkpoint and where it goes: to one expert, or to all (None), which lie in one tensor."""

    name: str
    slot: str
    source: StoredExpertMatrix
    held: HeldFormat | None
    expert: int | None = None

    def expected(self, num_experts: int) -> dict[str, ExpectedWeight]:
        """Its tensors, by what the layout calls them."""
        experts = () if self.expert is not None else (num_experts,)
        return {suffix: replace(one, shape=(*experts, *one.shape)) for suffix, one in self.source.expected().items()}

    def expected_bias(self, num_experts: int, dtype: torch.dtype) -> ExpectedWeight:
        experts = () if self.expert is not None else (num_experts,)
        return ExpectedWeight((*experts, self.source.shape[0]), dtype)

    def tensor_name(self, suffix: str) -> str:
        """Plain matrices of all experts go without a suffix."""
        if self.expert is not None:
            return f"{self.name}.{suffix}"
        return self.name if isinstance(self.source.layout, PlainLayout) else f"{self.name}_{suffix}"

    @property
    def bias_name(self) -> str:
        return f"{self.name}_bias" if self.expert is None else f"{self.name}.bias"


class _Piece(NamedTuple):
    """A tensor of a matrix, by what the layout calls it, or "bias"."""

    matrix: _Matrix
    suffix: str
    expected: ExpectedWeight


class Experts(Layer):
    """``forward(x [T, D], weights [T, K], ids [T, K], base [T, D] or None) -> [T, D]``: the chosen experts' sum.

    Ranks share the intermediate size of every expert; the caller adds up their results. A base is added to the result.
    The checkpoint may hold each expert by itself (``<prefix>.0.gate_proj.weight`` or ``<prefix>.0.w1.weight``) or all
    of them in one tensor (``<prefix>.gate_up_proj``), which `choose_names` finds out.
    """

    def __init__(self, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._config, self._context, self._ranks = config, context, context.collectives
        self._local_size = context.split(config.intermediate_size, f"{prefix}: intermediate_size of an expert")
        self._plain = ExpertsProblem(
            *(config.num_experts, config.top_k, config.hidden_size, self._local_size, context.dtype),
            *(check_activation(config.hidden_act), config.expert_bias, config.swiglu_alpha, config.swiglu_limit),
            batch_invariant=context.platform.batch_invariant,
        )
        # Until names are chosen, all experts are taken to be stored as the first.
        self._first = self._fused() if config.fused_transposed else self._single(_EXPERT_NAMES[0], 1)
        self.problem = self._problem_of(self._first, context.platform)
        self._stacks: dict[str, ExpertStack] = {}
        self._biases: dict[str, torch.Tensor] = {}
        # What has come of matrices that are not complete.
        self._waiting: dict[_Matrix, dict[str, torch.Tensor]] = {}
        self._chosen_pieces: dict[str, _Piece] | None = None
        self._apply: Callable[..., torch.Tensor] = not_loaded(prefix)

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, base: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._apply(x, weights, ids, base)

    @property
    def num_idle_weights(self) -> int:
        """Weights of the experts that one token does not choose; biases aside."""
        problem = self.problem
        return 3 * problem.hidden_size * problem.intermediate_size * (problem.num_experts - problem.top_k)

    def is_quantized(self, platform: Platform) -> bool:
        """Whether the weights would be held in another format than plain numbers there."""
        return not self._problem_of(self._first, platform).is_plain

    @property
    def is_stored_quantized(self) -> bool:
        return any(not isinstance(matrix.source.layout, PlainLayout) for matrix in self._first)

    def held_weights(self) -> list[HeldWeights]:
        first = self._first[0]
        held = " and ".join(dict.fromkeys(matrix.held.name for matrix in self.problem.matrices.values()))
        stored = first.source.layout.name
        return [HeldWeights.run_by(self._plan, (self.prefix,), asked=first.name, stored=stored, held=held)]

    def weights_on_rank(self) -> list[RankWeight]:
        count, weights = self.problem.num_experts, []
        for matrix in self.problem.matrices.values():
            shape = matrix.rows, matrix.columns
            weights.append(RankWeight((count, *shape), count * self._packed_bytes(matrix.name, shape)))
        if self.problem.bias:
            rows = [matrix.rows for matrix in self.problem.matrices.values()]
            weights += [RankWeight((count, size), count * size * self.problem.dtype.itemsize) for size in rows]
        return weights

    def choose_names(self, available: Collection[str]) -> None:
        """Expects the names that a checkpoint with those tensors uses."""
        if not {f"{self.prefix}.gate_up_proj", f"{self.prefix}.gate_up_proj_blocks"}.isdisjoint(available):
            self._list(self._fused())
            return
        for names in _EXPERT_NAMES:
            gate = self._single(names, 1)[0]
            known = {gate.bias_name, *map(gate.tensor_name, gate.source.expected())}
            if not known.isdisjoint(available):
                self._list(self._single(names, self._config.num_experts))

    def ignored_weights(self) -> frozenset[str]:
        matrices = {piece.matrix for piece in self._pieces.values()}
        return frozenset(f"{one.name}.{suffix}" for one in matrices for suffix in one.source.layout.ignored)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {name: piece.expected for name, piece in self._pieces.items()}

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        matrix, suffix, expected = self._pieces[name]
        check_shape(name, tensor, expected)
        if suffix == _BIAS:
            self._place_bias(matrix, tensor)
            return
        waiting = self._waiting.setdefault(matrix, {})
        waiting[suffix] = tensor
        if len(waiting) == len(matrix.source.expected()):
            self._place(matrix, self._waiting.pop(matrix))

    def finish(self) -> None:
        tensors, self._biases = {f"{slot}_bias": bias for slot, bias in self._biases.items()}, {}
        for stack in self._stacks.values():
            tensors |= stack.take()
        self._stacks = {}
        self._apply = self._plan.prepare(tensors)

    @property
    def _plan(self) -> Plan:
        return select(MOE_EXPERTS, self.problem, self._context.platform)

    @property
    def _pieces(self) -> dict[str, _Piece]:
        """By full name.

        Listed when first asked for: there may be a thousand, and a model that is only counted needs none.
        """
        if self._chosen_pieces is None:
            fused = self._config.fused_transposed
            return self._list(self._fused() if fused else self._single(_EXPERT_NAMES[0], self._config.num_experts))
        return self._chosen_pieces

    def _list(self, matrices: Sequence[_Matrix]) -> dict[str, _Piece]:
        """Expects these, and chooses the formats that hold them."""
        count, pieces = self._config.num_experts, {}
        for matrix in matrices:
            for suffix, expected in matrix.expected(count).items():
                pieces[matrix.tensor_name(suffix)] = _Piece(matrix, suffix, expected)
            if self._config.expert_bias:
                expected = matrix.expected_bias(count, self._context.dtype)
                pieces[matrix.bias_name] = _Piece(matrix, _BIAS, expected)
        self.problem = self._problem_of(matrices, self._context.platform)
        self._first = tuple(matrix for matrix in matrices if matrix.expert in (None, 0))
        self._chosen_pieces = pieces
        return pieces

    def _single(self, names: tuple[str, str, str], num_experts: int) -> tuple[_Matrix, ...]:
        """Matrices of the first experts, each by itself."""
        config = self._config
        outer, inner = (config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size)
        places = (("gate_up", outer, 0), ("gate_up", outer, 1), ("down", inner, None))
        matrices = []
        for expert in range(num_experts):
            for name, (slot, shape, half) in zip(names, places, strict=True):
                layer = f"{self.prefix}.{expert}.{name}"
                found = self._context.quantization.for_layer(layer, self._context.dtype)
                source = StoredExpertMatrix(found.stored, shape, half=half)
                matrices.append(_Matrix(layer, slot, source, found.held, expert))
        return tuple(matrices)

    def _fused(self) -> tuple[_Matrix, ...]:
        """The matrices of all experts in one."""
        config, matrices = self._config, []
        hidden, size = config.hidden_size, config.intermediate_size
        for slot, shape in (("gate_up", (2 * size, hidden)), ("down", (hidden, size))):
            layer = f"{self.prefix}.{slot}_proj"
            found = self._context.quantization.for_layer(layer, self._context.dtype)
            turned = isinstance(found.stored, PlainLayout) and config.fused_transposed
            interleaved = config.fused_transposed and slot == "gate_up"
            source = StoredExpertMatrix(found.stored, shape, turned=turned, interleaved=interleaved)
            matrices.append(_Matrix(layer, slot, source, found.held))
        return tuple(matrices)

    def _problem_of(self, matrices: Sequence[_Matrix], platform: Platform) -> ExpertsProblem:
        formats = {slot: self._format(slot, {one for one in matrices if one.slot == slot}) for slot in _SLOTS}
        rounded = any(matrix.held is not None and matrix.held.weights is not None for matrix in matrices)
        inputs = {matrix.held and matrix.held.inputs for matrix in matrices}
        common = inputs.pop() if len(inputs) == 1 else None
        return packed_experts(self._plain, formats, platform, rounded=rounded, input_format=common)

    def _format(self, slot: str, matrices: Collection[_Matrix]) -> WeightFormat | None:
        """That holds a matrix of all experts; None is plain, as where experts are stored in several formats."""
        if len({(matrix.source.layout, matrix.held) for matrix in matrices}) > 1:
            return None
        first = next(iter(matrices))
        source, held = first.source, first.held
        if held is None:
            return None
        if held.weights is not None:
            # Numbers are rounded when they are cut already, gate and up each by itself.
            rows = ((0, self._local_size),) * 2 if slot == "gate_up" else self._part(slot, source).rows
            return format_on_rank(held.weights, RankPart(rows, (0, source.shape[1])))
        return self._stored_format(slot, source)

    def _stored_format(self, slot: str, source: StoredExpertMatrix) -> WeightFormat | None:
        """That of the checkpoint, as it holds this rank's part of a matrix; None where it cannot."""
        part = self._part(slot, source)
        rows = part.rows * (1 if source.half is None else 2)
        return format_on_rank(source.layout.weight_format, RankPart(rows, part.columns), interleaved=source.interleaved)

    def _packed_bytes(self, slot: str, shape: tuple[int, int]) -> int:
        """A matrix of one expert on this rank, see `RankWeight`. Both matrices are packed, or none."""
        formats = {one.slot: self._stored_format(one.slot, one.source) for one in self._first}
        sources = [one.source for one in self._first if one.slot == slot]
        if isinstance(formats[slot], Plain) and not isinstance(sources[0].layout, PlainLayout):
            stored = sum(tensor.num_bytes for source in sources for tensor in source.expected().values())
            return stored // self._ranks.size
        held = None if None in formats.values() else formats[slot]
        return num_bytes(held or Plain(self.problem.dtype), *shape)

    def _part(self, slot: str, source: StoredExpertMatrix) -> RankPart:
        """What this rank holds of a matrix."""
        first = self._ranks.rank * self._local_size
        last, size = first + self._local_size, self._config.intermediate_size
        if slot == "down":
            return RankPart(((0, source.shape[0]),), (first, last))
        starts = (0, size) if source.half is None else (0,)
        return RankPart(tuple((start + first, start + last) for start in starts), (0, source.shape[1]))

    def _place(self, matrix: _Matrix, stored: Mapping[str, torch.Tensor]) -> None:
        """Puts this rank's part of a complete matrix where it belongs."""
        if matrix.slot not in self._stacks:
            held = self.problem.matrices[matrix.slot]
            self._stacks[matrix.slot] = ExpertStack(held, self.problem.num_experts, self._context.device)
        stack, part = self._stacks[matrix.slot], self._part(matrix.slot, matrix.source)
        if matrix.expert is not None:
            stack.place(matrix.expert, matrix.source, stored, part)
            return
        for expert in range(self.problem.num_experts):
            one = {suffix: tensor[expert] for suffix, tensor in stored.items()}
            stack.place(expert, matrix.source, one, part)

    def _place_bias(self, matrix: _Matrix, source: torch.Tensor) -> None:
        if matrix.slot not in self._biases:
            rows = self.problem.matrices[matrix.slot].rows
            shape = (self.problem.num_experts, rows)
            self._biases[matrix.slot] = torch.zeros(shape, dtype=self.problem.dtype, device=self._context.device)
        target, size, rank = self._biases[matrix.slot], self._config.intermediate_size, self._ranks.rank
        target = target[_at(matrix.expert)]
        source = source if matrix.expert is None else source.unsqueeze(0)
        if matrix.slot == "gate_up":
            here = slice(rank * self._local_size, (rank + 1) * self._local_size)
            is_interleaved = matrix.source.interleaved
            halves = (
                source.unflatten(1, (size, 2)).transpose(1, 2) if is_interleaved else source.unflatten(1, (-1, size))
            )
            target.unflatten(1, (2, -1))[:, _at(matrix.source.half)].copy_(halves[..., here])
        elif rank == 0:
            # The sum over ranks holds it once.
            target.copy_(source)


def _at(index: int | None) -> slice:
    """One place of a dimension that stays, or all of it."""
    return slice(None) if index is None else slice(index, index + 1)
