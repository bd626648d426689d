"""The experts of a mixture: their weights under every name that checkpoints use, and one grouped computation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.activation import check_activation
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import ExpectedWeight, check_shape, not_loaded
from atom_models.quantization import Dense

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.moe_config import MoEConfig

# Names of gate, up and down where each expert is stored by itself.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


@dataclass(frozen=True)
class _Piece:
    """A tensor of the checkpoint, and where it goes in a slot: to one expert or to all, to gate or up or both.

    `turned` says that inputs come before outputs, and that rows of gate and up take turns.
    """

    slot: str
    shape: tuple[int, ...]
    expert: int | None = None
    half: int | None = None
    turned: bool = False


class Experts(Layer):
    """``forward(x [T, D], weights [T, K], ids [T, K], base [T, D] or None) -> [T, D]``: the chosen experts' sum.

    Ranks share the intermediate size of every expert; the caller adds up their results. A base is added to the result.
    The checkpoint may hold each expert by itself (``<prefix>.0.gate_proj.weight`` or ``<prefix>.0.w1.weight``) or all
    of them in one tensor (``<prefix>.gate_up_proj``), which `choose_names` finds out.
    """

    ignored_weights: frozenset[str] = frozenset()

    def __init__(self, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._config, self._context, self._ranks = config, context, context.collectives
        self._local_size = context.split(config.intermediate_size, f"{prefix}: intermediate_size of an expert")
        scheme = context.quantization.scheme_for(f"{prefix}.0.gate_proj")
        if not isinstance(scheme, Dense):
            raise ValueError(f"{prefix}: experts cannot be held as {scheme.name} yet; leave them out of quantization")
        self.problem = ExpertsProblem(
            *(config.num_experts, config.top_k, config.hidden_size, self._local_size, context.dtype),
            *(check_activation(config.hidden_act), config.expert_bias, config.swiglu_alpha, config.swiglu_limit),
            batch_invariant=context.platform.batch_invariant,
        )
        self._tensors: dict[str, torch.Tensor] = {}
        self._chosen_pieces: dict[str, _Piece] | None = None
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
        if f"{self.prefix}.gate_up_proj" in available:
            self._chosen_pieces = self._fused_pieces()
            return
        for names in _EXPERT_NAMES:
            if f"{self.prefix}.0.{names[0]}.weight" in available:
                self._chosen_pieces = self._single_pieces(names)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {name: ExpectedWeight(piece.shape, self._context.dtype) for name, piece in self._pieces.items()}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [spec.shape for spec in MOE_EXPERTS.weights(self.problem).values() if not spec.optional]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        piece, size, rank = self._pieces[name], self._config.intermediate_size, self._ranks.rank
        check_shape(name, tensor, ExpectedWeight(piece.shape, self._context.dtype))
        source, target = tensor if piece.expert is None else tensor[None], self._tensor(piece.slot)[_at(piece.expert)]
        if piece.turned and source.ndim == 3:
            source = source.transpose(1, 2)
        here = slice(rank * self._local_size, (rank + 1) * self._local_size)
        if piece.slot in ("gate_up", "gate_up_bias"):
            pairs = source.unflatten(1, (size, 2)).transpose(1, 2) if piece.turned else source.unflatten(1, (-1, size))
            target.unflatten(1, (2, -1))[:, _at(piece.half)].copy_(pairs[:, :, here])
        elif piece.slot == "down":
            target.copy_(source[:, :, here])
        elif rank == 0:
            # The sum over ranks holds it once.
            target.copy_(source)

    def finish(self) -> None:
        tensors, self._tensors = self._tensors, {}
        self._apply = select(MOE_EXPERTS, self.problem, self._context.platform).prepare(tensors)

    @property
    def _pieces(self) -> dict[str, _Piece]:
        """Listed when first asked for: there may be a thousand, and a model that is only counted needs none."""
        if self._chosen_pieces is None:
            fused = self._config.fused_transposed
            self._chosen_pieces = self._fused_pieces() if fused else self._single_pieces(_EXPERT_NAMES[0])
        return self._chosen_pieces

    def _single_pieces(self, names: tuple[str, str, str]) -> dict[str, _Piece]:
        gate, up, down = names
        config = self._config
        outer, inner = (config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size)
        pieces = {}
        for expert in range(config.num_experts):
            start = f"{self.prefix}.{expert}"
            pieces[f"{start}.{gate}.weight"] = _Piece("gate_up", outer, expert, 0)
            pieces[f"{start}.{up}.weight"] = _Piece("gate_up", outer, expert, 1)
            pieces[f"{start}.{down}.weight"] = _Piece("down", inner, expert)
            if config.expert_bias:
                pieces[f"{start}.{gate}.bias"] = _Piece("gate_up_bias", outer[:1], expert, 0)
                pieces[f"{start}.{up}.bias"] = _Piece("gate_up_bias", outer[:1], expert, 1)
                pieces[f"{start}.{down}.bias"] = _Piece("down_bias", inner[:1], expert)
        return pieces

    def _fused_pieces(self) -> dict[str, _Piece]:
        config = self._config
        count, hidden, size = config.num_experts, config.hidden_size, config.intermediate_size
        turned = config.fused_transposed
        up_shape = (count, hidden, 2 * size) if turned else (count, 2 * size, hidden)
        down_shape = (count, size, hidden) if turned else (count, hidden, size)
        pieces = {
            f"{self.prefix}.gate_up_proj": _Piece("gate_up", up_shape, turned=turned),
            f"{self.prefix}.down_proj": _Piece("down", down_shape, turned=turned),
        }
        if config.expert_bias:
            pieces[f"{self.prefix}.gate_up_proj_bias"] = _Piece("gate_up_bias", (count, 2 * size), turned=turned)
            pieces[f"{self.prefix}.down_proj_bias"] = _Piece("down_bias", (count, hidden))
        return pieces

    def _tensor(self, slot: str) -> torch.Tensor:
        if slot not in self._tensors:
            spec: Any = MOE_EXPERTS.weights(self.problem)[slot]
            self._tensors[slot] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._context.device)
        return self._tensors[slot]


def _at(index: int | None) -> slice:
    """One place of a dimension that stays, or all of it."""
    return slice(None) if index is None else slice(index, index + 1)
