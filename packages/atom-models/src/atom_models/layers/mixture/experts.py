"""The experts of a mixture: their weights under every name that checkpoints use, and one grouped computation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from atom_kernels.activation import check_activation
from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.plan import BoundPlan, Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import not_loaded
from atom_models.layers.matrices import MatrixStack, StoredMatrix, format_on_rank
from atom_models.layers.mixture.exchange import RowExchange
from atom_models.layers.mixture.moves import move_slots, settled
from atom_models.layers.mixture.placement import ExpertPlacement, SlotsOfIds, share_of_experts
from atom_models.layers.weights import HeldWeights, RankWeight, Weights
from atom_models.quantization import EXPERTS, HeldFormat
from atom_models.quantization.packing import held_problem

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig

# Names of gate, up and down where each expert is stored by itself.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_SLOTS = ("gate_up", "down")


class _Matrix(NamedTuple):
    """A matrix of the checkpoint, the operator's matrix that it is a part of, and how the quantization has it held."""

    slot: str
    stored: StoredMatrix
    held: HeldFormat


class Experts(Layer):
    """``forward(x [T, D], weights [T, K], ids [T, K], base [T, D] or None) -> [T, D]``: the chosen experts' sum.

    Ranks share the intermediate size of every expert, or each holds whole experts, if the context places them; the
    caller adds up their results. A base is added to the result. Rows are exchanged with other engines where experts are
    spread over these too.
    The checkpoint may hold each expert by itself (``<prefix>.0.gate_proj.weight`` or ``<prefix>.0.w1.weight``) or all
    of them in one tensor (``<prefix>.gate_up_proj``), which `choose_names` finds out.
    """

    def __init__(self, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._config, self._context, self._share = config, context, share_of_experts(config, context, prefix)
        self._plain = ExpertsProblem(
            *(len(self._share.experts), config.top_k, config.hidden_size, self._share.size, context.dtype),
            *(check_activation(config.hidden_act), config.expert_bias, config.swiglu_alpha, config.swiglu_limit),
            batch_invariant=context.platform.batch_invariant,
            num_absent=self._share.num_absent,
        )
        self._names = _EXPERT_NAMES[0]
        # Until names are chosen, all experts are taken to be stored as the first.
        self._first = self._fused() if config.fused_transposed else self._single(self._share.experts[:1])
        self.problem = self._problem_of(self._first, context.platform)
        self._chosen: dict[str, MatrixStack] | None = None
        self._slots_of: Sequence[SlotsOfIds] = ()
        self._apply: Callable[..., torch.Tensor] = not_loaded(prefix)
        self._bound: BoundPlan | None = None
        self._exchange = RowExchange.of(config, context, self._share.placement)

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, base: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._exchange is None:
            return self._apply(x, weights, self._slots(ids), base)
        routed = self._exchange(self._apply, self._slots_of, x, weights, ids)
        return routed if base is None else routed + base

    def in_runs(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, base: torch.Tensor | None = None
    ) -> Callable[[slice], torch.Tensor]:
        """What `forward` gives, a run of tokens at a time: see `BoundPlan.in_runs`."""
        if self._exchange is None and self._bound is not None:
            return self._bound.in_runs(x, weights, self._slots(ids), base)
        return self(x, weights, ids, base).__getitem__

    def _slots(self, ids: torch.Tensor) -> torch.Tensor:
        if not self._slots_of:
            return ids
        (find_slots,) = self._slots_of
        return find_slots(ids)

    def take_part(self) -> None:
        """Compute rows of other engines in a step to which this one has none, as `forward` would with them."""
        config, context = self._config, self._context
        x = torch.zeros(0, config.hidden_size, dtype=context.dtype, device=context.device)
        weights = torch.zeros(0, config.top_k, dtype=torch.float32, device=context.device)
        self(x, weights, weights.int())

    def weights(self) -> list[Weights]:
        first = self._first[0].stored
        held = " and ".join(dict.fromkeys(matrix.held.name for matrix in self.problem.matrices.values()))
        return [
            Weights(
                lambda: {name: one for stack in self._stacks.values() for name, one in stack.expected().items()},
                self._on_rank(),
                lambda: HeldWeights.run_by(self._plan, held),
                names=(self.prefix,),
                layouts=tuple(matrix.stored.layout for matrix in self._first),
                asked=first.name,
                packed_on=lambda platform: not self._problem_of(self._first, platform).is_plain,
                chosen=(self.problem.top_k, self._config.num_experts),
            )
        ]

    def _on_rank(self) -> list[RankWeight]:
        # Both matrices of the operator are packed, or none.
        formats = [self._format_on_rank(None, [one.stored for one in _of(slot, self._first)]) for slot in _SLOTS]
        plain = Plain(self.problem.dtype)
        formats = [plain, plain] if plain in formats else formats
        stacks = [self._stack(slot, self._first, one) for slot, one in zip(_SLOTS, formats, strict=True)]
        weights = [stack.on_rank() for stack in stacks]
        if self.problem.bias:
            count, size = self.problem.num_experts, self.problem.dtype.itemsize
            weights += [RankWeight(stack.shape[:1], count * stack.shape[0] * size, count) for stack in stacks]
        return weights

    def choose_names(self, available: Collection[str]) -> None:
        """Expects the names that a checkpoint with those tensors uses."""
        if not {f"{self.prefix}.gate_up_proj", f"{self.prefix}.gate_up_proj_blocks"}.isdisjoint(available):
            self._choose(self._fused())
            return
        for names in _EXPERT_NAMES:
            gate = self._matrices_of(names, self._share.experts[:1])[0].stored
            if not gate.expected().keys().isdisjoint(available):
                self._names = names
                self._choose(self._single(self._share.experts))

    def ignored_weights(self) -> frozenset[str]:
        stored = [matrix for stack in self._stacks.values() for matrix in stack.matrices]
        absent = [] if stored[0].expert is None else [one.stored for one in self._single(self._share.absent)]
        ignored = {f"{matrix.name}.{part}" for matrix in stored + absent for part in matrix.layout.ignored}
        return frozenset(ignored.union(*(matrix.expected() for matrix in absent)))

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        stack = next(stack for stack in self._stacks.values() if name in stack)
        stack.load(name, tensor)

    def finish(self) -> None:
        tensors = {}
        for slot, stack in self._stacks.items():
            names = self.problem.matrices[slot].tensors
            tensors |= {names[part]: tensor for part, tensor in stack.take().items()}
            if self.problem.bias:
                tensors[f"{slot}_bias"] = stack.take_bias()
        self._apply = self._bound = self._plan.prepare(tensors)
        self._slots_of = self._share.slots_of_ids(self._context)

    @property
    def placement(self) -> ExpertPlacement | None:
        """Where all experts are; None where every rank has a part of each."""
        return self._share.placement

    def movable(self) -> list[torch.Tensor]:
        """The packed weights, each of which has a row for each slot; every memory once.

        Raises:
            ValueError: the weights are packed in another way, or there are none yet.
        """
        packed = {} if self._bound is None else self._bound.packed
        tensors = {
            one.data_ptr(): one for of_layout in packed.values() for one in of_layout.values() if one is not None
        }
        count = self.problem.num_experts
        if not tensors or any(
            one.dim() == 0 or len(one) != count or not one.is_contiguous() for one in tensors.values()
        ):
            raise ValueError(
                f"{self.prefix}: these weights cannot be moved between ranks one expert at a time as "
                f"{', '.join(packed) or 'nothing'} holds them: leave enable_eplb out"
            )
        return list(tensors.values())

    def move(self, placement: ExpertPlacement) -> None:
        """Hold other experts: every rank calls this between the same two steps, and they send each other weights.

        Weights change where they are, so that captured steps find them. Experts that stay on a rank keep their slots.

        Args:
            placement: it has as many slots on each rank as the one of before, and no expert twice on a rank.
        """
        old, ranks = self._share.placement, self._context.groups.expert
        if old is None or ranks is None:
            raise RuntimeError(f"{self.prefix}: every rank has a part of each expert, and none moves")
        placement = settled(placement, old)
        for tensor in self.movable():
            move_slots(tensor, old, placement, ranks)
        for slots_of in self._slots_of:
            slots_of.place(placement)
        held = placement.slots[ranks.rank]
        absent = tuple(sorted(set(range(self._config.num_experts)).difference(held)))
        self._share = replace(self._share, experts=held, absent=absent, placement=placement)

    def sizes_told_apart(self, most_tokens: int) -> list[int]:
        """Numbers of tokens that launch different kernels, once there are weights; see `BoundPlan`.

        None where ranks hold unequal numbers of experts: they run the same steps, for the same numbers of tokens.
        """
        return self._bound.sizes_told_apart(most_tokens) if self._bound is not None and self._share.is_even else []

    @property
    def _plan(self) -> Plan:
        return select(MOE_EXPERTS, self.problem, self._context.platform)

    @property
    def _stacks(self) -> dict[str, MatrixStack]:
        """The operator's matrices, gathered from those of the checkpoint.

        Listed when first asked for: there may be a thousand, and a model that is only counted needs none.
        """
        if self._chosen is None:
            return self._choose(self._fused() if self._config.fused_transposed else self._single(self._share.experts))
        return self._chosen

    def _choose(self, matrices: Sequence[_Matrix]) -> dict[str, MatrixStack]:
        """Expects these, and chooses the formats that hold them."""
        self.problem = self._problem_of(matrices, self._context.platform)
        self._first = tuple(self._of_first(matrices))
        self._chosen = {slot: self._stack(slot, matrices, self.problem.matrices[slot].held) for slot in _SLOTS}
        return self._chosen

    def _stack(self, slot: str, matrices: Sequence[_Matrix], held: WeightFormat | None) -> MatrixStack:
        return MatrixStack(
            [matrix.stored for matrix in _of(slot, matrices)],
            self._context.device,
            held=held,
            experts=self._share.experts,
            keeps_bias=slot == "gate_up" or self._share.adds_bias,
        )

    def _single(self, experts: Sequence[int]) -> tuple[_Matrix, ...]:
        """Matrices of these experts, each by itself."""
        return self._matrices_of(self._names, experts)

    def _matrices_of(self, names: tuple[str, str, str], experts: Sequence[int]) -> tuple[_Matrix, ...]:
        gate, up, down = names
        size, hidden = self._config.intermediate_size, self._config.hidden_size
        places = ((gate, "gate_up", (size, hidden)), (up, "gate_up", (size, hidden)), (down, "down", (hidden, size)))
        return tuple(
            self._matrix(f"{self.prefix}.{expert}.{name}", slot, shape, expert=expert)
            for expert in dict.fromkeys(experts)
            for name, slot, shape in places
        )

    def _of_first(self, matrices: Sequence[_Matrix]) -> list[_Matrix]:
        """Those of the first expert here, or of all in one."""
        return [matrix for matrix in matrices if matrix.stored.expert in (None, self._share.experts[0])]

    def _fused(self) -> tuple[_Matrix, ...]:
        """The matrices of all experts in one."""
        config, hidden, size = self._config, self._config.hidden_size, self._config.intermediate_size
        how = {"num_experts": config.num_experts, "turned": config.fused_transposed}
        gate_up, down = (f"{self.prefix}.{slot}_proj" for slot in _SLOTS)
        return (
            self._matrix(gate_up, "gate_up", (2 * size, hidden), **how, interleaved=config.fused_in_turns),
            self._matrix(down, "down", (hidden, size), **how),
        )

    def _matrix(self, name: str, slot: str, shape: tuple[int, int], **how: Any) -> _Matrix:
        """A matrix of that name, and what this rank holds of it: all, or its share of the intermediate size."""
        found = self._context.quantization.for_layer(name, self._context.dtype)
        size = self._config.intermediate_size
        first, last = self._share.inside
        if slot == "down":
            rows, columns = ((0, shape[0]),), (first, last)
        else:
            rows, columns = tuple((start + first, start + last) for start in range(0, shape[0], size)), (0, shape[1])
        bias = self._context.dtype if self._config.expert_bias else None
        stored = StoredMatrix(name, found.stored, shape, rows, columns, bias=bias, **how)
        return _Matrix(slot, stored, found.held)

    def _problem_of(self, matrices: Sequence[_Matrix], platform: Platform) -> ExpertsProblem:
        rounded = {matrix.held.weights for matrix in matrices} - {None}
        inputs = {matrix.held.inputs for matrix in matrices}
        held = HeldFormat(next(iter(rounded), None), inputs.pop() if len(inputs) == 1 else None)
        formats = [self._format(_of(slot, matrices)) for slot in _SLOTS]
        return held_problem(EXPERTS, self._plain, formats, held, platform)

    def _format(self, matrices: Sequence[_Matrix]) -> WeightFormat:
        """The format that holds a matrix of all experts; those that are stored in several formats are plain."""
        held = matrices[0].held
        if len({(matrix.stored.layout, matrix.held) for matrix in matrices}) > 1:
            return Plain(self._context.dtype)
        first = [matrix.stored for matrix in self._of_first(matrices)]
        if held.weights is not None:
            # Numbers are rounded when they are cut already, gate and up each by itself.
            first = [
                replace(one, rows=tuple((0, end - start) for start, end in one.rows), columns=(0, 1), interleaved=False)
                for one in first
            ]
        return self._format_on_rank(held.weights, first)

    def _format_on_rank(self, wanted: WeightFormat | None, matrices: Sequence[StoredMatrix]) -> WeightFormat:
        """The wanted format, or the one in which they are stored, as it holds this rank's part; plain if it cannot."""
        try:
            return format_on_rank(wanted or matrices[0].layout.weight_format, matrices)
        except ValueError:
            return Plain(self._context.dtype)


def _of(slot: str, matrices: Sequence[_Matrix]) -> list[_Matrix]:
    return [matrix for matrix in matrices if matrix.slot == slot]
