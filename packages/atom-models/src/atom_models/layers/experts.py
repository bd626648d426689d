"""The experts of a mixture: their weights under every name that checkpoints use, and one grouped computation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.activation import check_activation
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.quantization import DENSE_INPUT, Dense, ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext

# Names of gate, up and down where each expert is stored by itself.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


@dataclass(frozen=True)
class _Piece:
    """A matrix or bias of the checkpoint and where it goes: rows of a slot, of one expert or of all.

    Attributes:
        layout: of the matrix; None for a bias.
        shape: of the plain numbers, experts first where they are all in one.
        transposed: inputs come before outputs.
        interleaved: rows of gate and up take turns.
    """

    slot: str
    shape: tuple[int, ...]
    layout: StoredLayout | None = None
    expert: int | None = None
    part: str = "both"
    transposed: bool = False
    interleaved: bool = False

    def expected(self, dtype: torch.dtype) -> dict[str, ExpectedWeight]:
        """Its tensors, by what the layout calls them."""
        if self.layout is None or isinstance(self.layout, PlainLayout):
            return {"weight": ExpectedWeight(self.shape, dtype)}
        *experts, rows, columns = self.shape
        tensors = self.layout.expected(rows, columns)
        return {suffix: replace(one, shape=(*experts, *one.shape)) for suffix, one in tensors.items()}


class Experts(Layer):
    """``forward(x [T, D], weights [T, K], ids [T, K], base [T, D] or None) -> [T, D]``: the chosen experts' sum.

    Ranks share the intermediate size of every expert; the caller adds up their results. A base is added to the result.
    The checkpoint may hold each expert by itself (``<prefix>.0.gate_proj.weight`` or ``<prefix>.0.w1.weight``) or all
    of them in one tensor (``<prefix>.gate_up_proj``), which `choose_names` finds out.

    Args:
        bias: both products have one.
        fused_transposed: fused tensors are [E, inputs, outputs] with rows of gate and up taking turns (GPT-OSS)
            instead of [E, outputs, inputs] with all of gate first.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        context: BuildContext,
        prefix: str,
        activation: str = "silu",
        bias: bool = False,
        fused_transposed: bool = False,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.input_format = DENSE_INPUT
        self._context, self._ranks = context, context.collectives
        self._size, self._hidden_size, self._num_experts = intermediate_size, hidden_size, num_experts
        self._local_size = context.split(intermediate_size, f"{prefix}: intermediate_size of an expert")
        self._bias, self._fused_transposed = bias, fused_transposed
        quantization = context.quantization.for_layer(f"{prefix}.0.gate_proj", context.dtype)
        if isinstance(quantization.stored, PlainLayout) and not isinstance(quantization.scheme, Dense):
            name = quantization.scheme.name
            raise ValueError(f"{prefix}: experts cannot be held as {name} yet; leave them out of quantization")
        self.problem = ExpertsProblem(
            *(num_experts, top_k, hidden_size, self._local_size, context.dtype),
            *(check_activation(activation), bias, alpha, limit),
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
        return self._weights_of_one * (self.problem.num_experts - self.problem.top_k)

    @property
    def num_active_weights(self) -> int:
        """Weights of the experts that one token chooses; biases aside."""
        return self._weights_of_one * self.problem.top_k

    @property
    def _weights_of_one(self) -> int:
        return 3 * self.problem.hidden_size * self.problem.intermediate_size

    def choose_names(self, available: Collection[str]) -> None:
        """Expects the names that a checkpoint with those tensors uses."""
        if not {f"{self.prefix}.gate_up_proj", f"{self.prefix}.gate_up_proj_blocks"}.isdisjoint(available):
            self._chosen_pieces = self._fused_pieces()
            return
        for names in _EXPERT_NAMES:
            start = f"{self.prefix}.0.{names[0]}."
            if any(name.startswith(start) for name in available):
                self._chosen_pieces = self._single_pieces(names)

    @property
    def ignored_weights(self) -> frozenset[str]:
        layers = {name.removesuffix(f".{suffix}"): piece.layout for name, (piece, suffix) in self._pieces.items()}
        return frozenset(f"{layer}.{suffix}" for layer, layout in layers.items() if layout for suffix in layout.ignored)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        dtype = self._context.dtype
        return {name: piece.expected(dtype)[suffix] for name, (piece, suffix) in self._pieces.items()}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [spec.shape for spec in MOE_EXPERTS.weights(self.problem).values() if not spec.optional]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        piece, suffix = self._pieces[name]
        expected = piece.expected(self._context.dtype)
        check_shape(name, tensor, expected[suffix])
        waiting = self._waiting.setdefault(piece, {})
        waiting[suffix] = tensor
        if len(waiting) == len(expected):
            self._place(piece, self._waiting.pop(piece))

    def _place(self, piece: _Piece, stored: dict[str, torch.Tensor]) -> None:
        """Puts a complete matrix or bias where it belongs, as plain numbers. Experts in one tensor go one by one."""
        target = self._tensor(piece.slot)
        if piece.expert is not None:
            self._place_one(piece, stored, target[piece.expert])
            return
        for expert, one in enumerate(target):
            self._place_one(piece, {suffix: tensor[expert] for suffix, tensor in stored.items()}, one)

    def _place_one(self, piece: _Piece, stored: dict[str, torch.Tensor], target: torch.Tensor) -> None:
        tensor = self._plain(piece, stored)
        if piece.transposed:
            tensor = tensor.t()
        for part, source in self._parts(piece, tensor):
            self._copy(source, target, part)

    def _plain(self, piece: _Piece, stored: dict[str, torch.Tensor]) -> torch.Tensor:
        if piece.layout is None or isinstance(piece.layout, PlainLayout):
            return stored["weight"]
        rows, columns = piece.shape[-2:]
        return piece.layout.weight_format.dequantize(piece.layout.to_parts(stored, rows, columns), columns)

    def finish(self) -> None:
        tensors, self._tensors = self._tensors, {}
        self._apply = select(MOE_EXPERTS, self.problem, self._context.platform).prepare(tensors)

    @property
    def _pieces(self) -> dict[str, tuple[_Piece, str]]:
        """By full name: the piece, and what its layout calls that tensor.

        Listed when first asked for: there may be a thousand, and a model that is only counted needs none.
        """
        if self._chosen_pieces is None:
            fused = self._fused_transposed
            self._chosen_pieces = self._fused_pieces() if fused else self._single_pieces(_EXPERT_NAMES[0])
        return self._chosen_pieces

    def _layout(self, name: str) -> StoredLayout:
        return self._context.quantization.for_layer(name, self._context.dtype).stored

    def _single_pieces(self, names: tuple[str, str, str]) -> dict[str, tuple[_Piece, str]]:
        gate, up, down = names
        outer, inner = (self._size, self._hidden_size), (self._hidden_size, self._size)
        pieces = {}
        for expert in range(self._num_experts):
            for name, part, slot, shape in (
                (gate, "gate", "gate_up", outer),
                (up, "up", "gate_up", outer),
                (down, "down", "down", inner),
            ):
                layer = f"{self.prefix}.{expert}.{name}"
                piece = _Piece(slot, shape, self._layout(layer), expert, part)
                pieces |= {f"{layer}.{suffix}": (piece, suffix) for suffix in piece.expected(self._context.dtype)}
                if self._bias:
                    part = "down_bias" if part == "down" else part
                    pieces[f"{layer}.bias"] = _Piece(f"{slot}_bias", shape[:1], None, expert, part), "weight"
        return pieces

    def _fused_pieces(self) -> dict[str, tuple[_Piece, str]]:
        count, hidden, size, interleaved = self._num_experts, self._hidden_size, self._size, self._fused_transposed
        pieces = {}
        for name, slot, part, rows, columns in (
            ("gate_up_proj", "gate_up", "both", 2 * size, hidden),
            ("down_proj", "down", "down", hidden, size),
        ):
            layer = f"{self.prefix}.{name}"
            layout = self._layout(layer)
            turned = self._fused_transposed and isinstance(layout, PlainLayout)
            shape = (count, columns, rows) if turned else (count, rows, columns)
            piece = _Piece(slot, shape, layout, None, part, turned, interleaved)
            if isinstance(layout, PlainLayout):
                pieces[layer] = piece, "weight"
            else:
                pieces |= {f"{layer}_{suffix}": (piece, suffix) for suffix in piece.expected(self._context.dtype)}
            if self._bias:
                part = "down_bias" if part == "down" else part
                bias = _Piece(f"{slot}_bias", (count, rows), None, None, part, False, interleaved)
                pieces[f"{layer}_bias"] = bias, "weight"
        return pieces

    def _parts(self, piece: _Piece, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        if piece.part != "both":
            return [(piece.part, tensor)]
        if piece.interleaved:
            return [("gate", tensor[0::2]), ("up", tensor[1::2])]
        return [("gate", tensor[: self._size]), ("up", tensor[self._size :])]

    def _copy(self, source: torch.Tensor, target: torch.Tensor, part: str) -> None:
        """This rank's share of a part of one expert."""
        size, rank = self._local_size, self._ranks.rank
        if part in ("gate", "up"):
            first = 0 if part == "gate" else size
            target[first : first + size].copy_(source[rank * size : (rank + 1) * size])
        elif part == "down":
            target.copy_(source[:, rank * size : (rank + 1) * size])
        elif rank == 0:
            # The sum over ranks holds it once.
            target.copy_(source)

    def _tensor(self, slot: str) -> torch.Tensor:
        if slot not in self._tensors:
            spec: Any = MOE_EXPERTS.weights(self.problem)[slot]
            self._tensors[slot] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._context.device)
        return self._tensors[slot]
