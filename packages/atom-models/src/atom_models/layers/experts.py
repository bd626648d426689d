"""The experts of a mixture: their weights under every name that checkpoints use, and one grouped computation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.activation import check_activation
from atom_kernels.formats import Plain
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.operator import WeightSpec
from atom_kernels.plan import Plan
from atom_kernels.select import select
from atom_models.layers.held_weights import HeldWeights
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import RankWeight, check_shape, not_loaded
from atom_models.quantization import ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.moe_config import MoEConfig

# Names of gate, up and down where each expert is stored by itself.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


@dataclass(frozen=True)
class _Piece:
    """A matrix or bias of the checkpoint, and where it goes in a slot: to one expert or to all, to gate or up or both.

    Attributes:
        layout: of the matrix; None for a bias.
        shape: of the plain numbers, experts first where they are all in one.
        turned: inputs come before outputs.
        interleaved: rows of gate and up take turns.
    """

    slot: str
    shape: tuple[int, ...]
    layout: StoredLayout | None = None
    expert: int | None = None
    half: int | None = None
    turned: bool = False
    interleaved: bool = False

    def expected(self, dtype: torch.dtype) -> dict[str, ExpectedWeight]:
        """Its tensors, by what the layout calls them."""
        if self.layout is None or isinstance(self.layout, PlainLayout):
            return {"weight": ExpectedWeight(self.shape, dtype)}
        *experts, rows, columns = self.shape
        tensors = self.layout.expected(rows, columns)
        return {suffix: replace(one, shape=(*experts, *one.shape)) for suffix, one in tensors.items()}

    def plain(self, stored: dict[str, torch.Tensor]) -> torch.Tensor:
        """The numbers of one expert, outputs first."""
        if self.layout is None or isinstance(self.layout, PlainLayout):
            return stored["weight"].t() if self.turned else stored["weight"]
        rows, columns = self.shape[-2:]
        return self.layout.weight_format.dequantize(self.layout.to_parts(stored, rows, columns), columns)


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
        found = context.quantization.for_layer(f"{prefix}.0.gate_proj", context.dtype)
        if isinstance(found.stored, PlainLayout) and found.held is not None:
            name = context.quantization.name
            raise ValueError(f"{prefix}: experts cannot be held as {name} yet; leave them out of quantization")
        self.problem = ExpertsProblem(
            *(config.num_experts, config.top_k, config.hidden_size, self._local_size, context.dtype),
            *(check_activation(config.hidden_act), config.expert_bias, config.swiglu_alpha, config.swiglu_limit),
            batch_invariant=context.platform.batch_invariant,
        )
        self._tensors: dict[str, torch.Tensor] = {}
        # What has come of matrices that are not complete.
        self._waiting: dict[_Piece, dict[str, torch.Tensor]] = {}
        self._chosen_pieces: dict[str, tuple[_Piece, str]] | None = None
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

    def held_weights(self) -> list[HeldWeights]:
        name = f"{self.prefix}.0.{_EXPERT_NAMES[0][0]}"
        held = Plain(self._context.dtype).name
        return [HeldWeights.run_by(self._plan, (self.prefix,), asked=name, stored=self._layout(name).name, held=held)]

    @property
    def _plan(self) -> Plan:
        return select(MOE_EXPERTS, self.problem, self._context.platform)

    def choose_names(self, available: Collection[str]) -> None:
        """Expects the names that a checkpoint with those tensors uses."""
        if not {f"{self.prefix}.gate_up_proj", f"{self.prefix}.gate_up_proj_blocks"}.isdisjoint(available):
            self._chosen_pieces = self._fused_pieces()
            return
        for names in _EXPERT_NAMES:
            start = f"{self.prefix}.0.{names[0]}."
            if any(name.startswith(start) for name in available):
                self._chosen_pieces = self._single_pieces(names)

    def ignored_weights(self) -> frozenset[str]:
        layers = {name.removesuffix(f".{suffix}"): piece.layout for name, (piece, suffix) in self._pieces.items()}
        return frozenset(f"{layer}.{suffix}" for layer, layout in layers.items() if layout for suffix in layout.ignored)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        dtype = self._context.dtype
        return {name: piece.expected(dtype)[suffix] for name, (piece, suffix) in self._pieces.items()}

    def weights_on_rank(self) -> list[RankWeight]:
        specs = {slot: spec for slot, spec in MOE_EXPERTS.weights(self.problem).items() if not spec.optional}
        return [RankWeight(spec.shape, self._stored_bytes(slot, spec)) for slot, spec in specs.items()]

    def _stored_bytes(self, slot: str, spec: WeightSpec) -> int:
        """All experts are taken to be stored as the first."""
        layout = self._layout(f"{self.prefix}.0.{_EXPERT_NAMES[0][0]}")
        if slot.endswith("bias") or isinstance(layout, PlainLayout):
            return spec.num_bytes
        config = self._config
        whole = sum(one.num_bytes for one in layout.expected(config.intermediate_size, config.hidden_size).values())
        num_matrices = {"gate_up": 2, "down": 1}[slot] * config.num_experts
        return whole * num_matrices // self._ranks.size

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        piece, suffix = self._pieces[name]
        expected = piece.expected(self._context.dtype)
        check_shape(name, tensor, expected[suffix])
        waiting = self._waiting.setdefault(piece, {})
        waiting[suffix] = tensor
        if len(waiting) < len(expected):
            return
        stored, target = self._waiting.pop(piece), self._tensor(piece.slot)
        if piece.expert is not None:
            self._place(piece, stored, target[piece.expert])
            return
        for expert, one in enumerate(target):
            self._place(piece, {suffix: tensor[expert] for suffix, tensor in stored.items()}, one)

    def _place(self, piece: _Piece, stored: dict[str, torch.Tensor], target: torch.Tensor) -> None:
        """Puts this rank's part of a complete matrix or bias where it belongs in one expert, as plain numbers."""
        source, size, rank = piece.plain(stored), self._config.intermediate_size, self._ranks.rank
        here = slice(rank * self._local_size, (rank + 1) * self._local_size)
        if piece.slot in ("gate_up", "gate_up_bias"):
            halves = (
                source.unflatten(0, (size, 2)).transpose(0, 1) if piece.interleaved else source.unflatten(0, (-1, size))
            )
            target.unflatten(0, (2, -1))[_at(piece.half)].copy_(halves[:, here])
        elif piece.slot == "down":
            target.copy_(source[:, here])
        elif rank == 0:
            # The sum over ranks holds it once.
            target.copy_(source)

    def finish(self) -> None:
        tensors, self._tensors = self._tensors, {}
        self._apply = self._plan.prepare(tensors)

    @property
    def _pieces(self) -> dict[str, tuple[_Piece, str]]:
        """By full name: the piece, and what its layout calls that tensor.

        Listed when first asked for: there may be a thousand, and a model that is only counted needs none.
        """
        if self._chosen_pieces is None:
            fused = self._config.fused_transposed
            self._chosen_pieces = self._fused_pieces() if fused else self._single_pieces(_EXPERT_NAMES[0])
        return self._chosen_pieces

    def _layout(self, name: str) -> StoredLayout:
        return self._context.quantization.for_layer(name, self._context.dtype).stored

    def _single_pieces(self, names: tuple[str, str, str]) -> dict[str, tuple[_Piece, str]]:
        config = self._config
        outer, inner = (config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size)
        places = (("gate_up", outer, 0), ("gate_up", outer, 1), ("down", inner, None))
        pieces = {}
        for expert in range(config.num_experts):
            for name, (slot, shape, half) in zip(names, places, strict=True):
                layer = f"{self.prefix}.{expert}.{name}"
                piece = _Piece(slot, shape, self._layout(layer), expert, half)
                pieces |= {f"{layer}.{suffix}": (piece, suffix) for suffix in piece.expected(self._context.dtype)}
                if config.expert_bias:
                    pieces[f"{layer}.bias"] = _Piece(f"{slot}_bias", shape[:1], None, expert, half), "weight"
        return pieces

    def _fused_pieces(self) -> dict[str, tuple[_Piece, str]]:
        config = self._config
        count, hidden, size = config.num_experts, config.hidden_size, config.intermediate_size
        pieces = {}
        for slot, rows, columns in (("gate_up", 2 * size, hidden), ("down", hidden, size)):
            layer = f"{self.prefix}.{slot}_proj"
            layout = self._layout(layer)
            is_plain = isinstance(layout, PlainLayout)
            turned, interleaved = is_plain and config.fused_transposed, config.fused_transposed
            shape = (columns, rows) if turned else (rows, columns)
            piece = _Piece(slot, (count, *shape), layout, turned=turned, interleaved=interleaved)
            # Plain matrices of all experts go without a suffix.
            pieces |= {
                layer if is_plain else f"{layer}_{suffix}": (piece, suffix)
                for suffix in piece.expected(self._context.dtype)
            }
            if config.expert_bias:
                pieces[f"{layer}_bias"] = _Piece(f"{slot}_bias", (count, rows), interleaved=interleaved), "weight"
        return pieces

    def _tensor(self, slot: str) -> torch.Tensor:
        if slot not in self._tensors:
            spec: Any = MOE_EXPERTS.weights(self.problem)[slot]
            self._tensors[slot] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._context.device)
        return self._tensors[slot]


def _at(index: int | None) -> slice:
    """One place of a dimension that stays, or all of it."""
    return slice(None) if index is None else slice(index, index + 1)
