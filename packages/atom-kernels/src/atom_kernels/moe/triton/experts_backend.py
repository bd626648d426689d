"""The chosen experts through Triton, as a backend of their operator: no synchronization, so that graphs can hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from atom_kernels.activation.triton_backend import why_not_in_triton
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.formats import Codes
from atom_kernels.linear.triton.packed_product import why_not_read
from atom_kernels.linear.triton.packed_weights import packing_of
from atom_kernels.linear.triton.precision import precision_of
from atom_kernels.linear.triton.rounded_rows import rounded_rows
from atom_kernels.moe.contract import ExpertsProblem, experts_inputs
from atom_kernels.moe.fragments import MATRIX_LAYOUT
from atom_kernels.moe.grouped_backend import why_not_grouped
from atom_kernels.moe.packing import linear_of, pack_experts, packed_bytes
from atom_kernels.moe.tolerance import experts_tolerance
from atom_kernels.moe.triton.configs import FEW_PAIRS, ExpertsConfig, ExpertsConfigs, TileConfig, may_round
from atom_kernels.operator import Backend, Tolerance, WeightLayout
from atom_kernels.platform import detect_platform
from atom_kernels.triton.launch import launch

# Every program adds up how many pairs each expert has.
_MAX_EXPERTS = 1024
_SORT_BLOCK, _COMBINE_BLOCK = 1024, 1024
# Parts of the inputs of one token's second product, where it would have fewer programs for each processor.
_MOST_PARTS, _PROGRAMS_OF_PROCESSOR = 2, 2
# With so many pairs an expert, on average, torch's grouped product of sorted rows is faster where there is one.
_PAIRS_FOR_GROUPED = 48


class _Pairs(NamedTuple):
    """A call's pairs as `experts_kernel` takes them; sorted only if they are many."""

    ids: torch.Tensor
    order: torch.Tensor | None
    starts: torch.Tensor | None
    count: int


class ExpertsKernels(NamedTuple):
    """What is launched for a number of tokens; for numbers of one result the same kernels are compiled.

    Attributes:
        config: the tiles.
        pairs_block: 0 where pairs are sorted; else as many as a program looks through, of which there are few sizes.
        by_pair: there are fewer pairs than experts.
    """

    config: ExpertsConfig
    pairs_block: int
    by_pair: bool


class Operands(NamedTuple):
    """The tensors of one matrix of all experts, in the order of the kernel; packed ones have a scale."""

    weight: torch.Tensor
    scale: torch.Tensor | None
    minimum: torch.Tensor | None
    bias: torch.Tensor | None


class TritonExperts:
    """`experts` for given weights: plain ones, or those of `MATRIX_LAYOUT`.

    Args:
        config_for: gives the tiles for a number of tokens.
    """

    def __init__(
        self,
        problem: ExpertsProblem,
        weights: Mapping[str, torch.Tensor | None],
        config_for: Callable[[int], ExpertsConfig],
        few_pairs: int = FEW_PAIRS,
    ) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.moe.triton import experts, pairs, rows
        from atom_kernels.powers_of_two import power_of_two
        from atom_kernels.triton.support import dependent_launch

        self._sort: Any = pairs.sort_pairs_kernel
        self._product_kernel: Any = experts.experts_kernel
        self._combine: Any = rows.combine_kernel
        self._dependent = dependent_launch()
        self._num_processors = detect_platform().num_processors
        self._combine_block = min(_COMBINE_BLOCK, power_of_two(problem.hidden_size))
        self._problem, self._config_for, self._few_pairs = problem, config_for, few_pairs
        self._operands = {name: _operands(name, weights) for name in problem.matrices}
        pairs_per_row = {"gate_up": problem.top_k, "down": 1}
        self._shapes = {
            name: {"DEPTH": matrix.columns, "WIDTH": matrix.rows, "PAIRS_PER_ROW": pairs_per_row[name]}
            | packing_of(matrix.held, matrix.columns).constants()
            for name, matrix in problem.matrices.items()
        }
        self._constants = {
            "NUM_EXPERTS": problem.num_experts,
            "EXPERTS_BLOCK": power_of_two(problem.num_experts),
            "HAS_BIAS": problem.bias,
            "PRECISION": precision_of(problem.dtype, is_packed=not problem.is_plain),
        }

    def __call__(
        self, x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        x_TD, weights_TK, ids_TK, base_TD = experts_inputs(self._problem, x_TD, weights_TK, ids_TK, base_TD)
        num_tokens, problem = x_TD.shape[0], self._problem
        out_TD = torch.empty_like(x_TD)
        if num_tokens == 0:
            return out_TD
        kernels = self.kernels_for(num_tokens)
        config, pairs = kernels.config, self._pairs(ids_TK)
        hidden = x_TD.new_empty(pairs.count, problem.intermediate_size)
        self._product("gate_up", x_TD, hidden, pairs, config.gate_up, str(problem.activation))
        parts = self._parts("down", pairs.count, config.down)
        partial = out_TD.new_empty(pairs.count * parts, problem.hidden_size, dtype=torch.float32 if parts > 1 else None)
        self._product("down", hidden, partial, pairs, config.down, "none", parts)
        launch(
            self._combine, (num_tokens, -(-problem.hidden_size // self._combine_block)),
            partial, None, None, weights_TK, ids_TK, base_TD, out_TD,
            NUM_EXPERTS=problem.num_experts, TOP_K=problem.top_k, WIDTH=problem.hidden_size,
            BLOCK=self._combine_block, PARTS=parts, **self._dependent,
        )  # fmt: skip
        return out_TD

    def kernels_for(self, num_tokens: int) -> ExpertsKernels:
        """What a call of so many tokens launches."""
        count = num_tokens * self._problem.top_k
        by_pair = count < self._problem.num_experts
        return ExpertsKernels(self._config_for(num_tokens), self._pairs_block(count), by_pair)

    def product_call(self, name: str, x: torch.Tensor, ids_TK: torch.Tensor, tile: TileConfig) -> Callable[[], Any]:
        """One product alone, to be timed: "gate_up" of x [T, D] or "down" of x [T * K, I]."""
        pairs, problem = self._pairs(ids_TK), self._problem
        gated = name == "gate_up"
        out = x.new_empty(pairs.count, problem.intermediate_size if gated else problem.hidden_size)
        activation = str(problem.activation) if gated else "none"
        return lambda: self._product(name, x, out, pairs, tile, activation)

    def _pairs(self, ids_TK: torch.Tensor) -> _Pairs:
        count, num_experts = ids_TK.numel(), self._problem.num_experts
        if self._pairs_block(count):
            return _Pairs(ids_TK, None, None, count)
        order = ids_TK.new_empty(count)
        starts = ids_TK.new_empty(num_experts + 1)
        launch(
            self._sort, (num_experts, 1), ids_TK, order, None, starts, count, count,
            NUM_EXPERTS=num_experts, BLOCK=_SORT_BLOCK, **self._dependent,
        )  # fmt: skip
        return _Pairs(ids_TK, order, starts, count)

    def _pairs_block(self, count: int) -> int:
        """Pairs among which a program finds its own; only few sizes, since each one is compiled. 0 sorts them."""
        if count > self._few_pairs:
            return 0
        if count <= self._problem.top_k:
            return 1
        return self._few_pairs if count > 64 else min(64, self._few_pairs)

    def _is_alone(self, count: int) -> bool:
        """Whether the pairs are of one token, whose sums may have an order of their own."""
        return count <= self._problem.top_k and not self._problem.batch_invariant

    def _parts(self, name: str, count: int, tile: TileConfig) -> int:
        """Into how many parts the inputs of a product are split, so that one token fills the processors."""
        shape = self._shapes[name]
        if shape["KIND"] != Codes.E2M1.value or not self._is_alone(count):
            return 1
        programs = count * -(-shape["WIDTH"] // tile.block_n)
        return _MOST_PARTS if programs < _PROGRAMS_OF_PROCESSOR * (self._num_processors or programs) else 1

    def _product(
        self,
        name: str,
        x: torch.Tensor,
        out: torch.Tensor,
        pairs: _Pairs,
        tile: TileConfig,
        activation: str,
        parts: int = 1,
    ) -> None:
        problem, shape = self._problem, self._shapes[name]
        reachable = min(problem.num_experts, pairs.count)
        num_slots, pairs_block = reachable, self._pairs_block(pairs.count)
        if pairs_block == 1:
            num_slots = pairs.count  # one token's, which may be more than there are experts here
        elif not pairs_block:
            num_slots = (pairs.count + reachable * (tile.block_m - 1)) // tile.block_m
        num_tiles = -(-shape["WIDTH"] // tile.block_n)
        x_scale = None
        if tile.rounds:
            x, x_scale = _rounded(x, shape["GROUP"])
        launch(
            self._product_kernel, (num_slots * parts * num_tiles,),
            x, x_scale, *self._operands[name], out, *pairs, num_slots * parts, problem.alpha, problem.limit,
            **self._constants, **shape, **tile.launch(),
            PAIRS_BLOCK=pairs_block,
            BY_PAIR=pairs.count < problem.num_experts,
            ACTIVATION=activation,
            PARTS=parts,
            ONE_TOKEN=self._is_alone(pairs.count),
        )  # fmt: skip


def _rounded(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as e4m3 with a scale for each group of inputs, or for all of them."""
    group = min(group, x.shape[1])
    codes, scale = rounded_rows(x.view(-1, group))
    return codes.view(x.shape), scale.view(x.shape[0], -1)


def _operands(name: str, weights: Mapping[str, torch.Tensor | None]) -> Operands:
    bias = weights[f"{name}_bias"]
    bias = None if bias is None else bias.contiguous()
    if (plain := weights.get(name)) is not None:
        return Operands(plain.contiguous(), None, None, bias)
    codes = weights[f"{name}_codes"]
    if codes is None:
        raise ValueError(f"experts need the weight {name}")
    return Operands(codes, weights[f"{name}_scale"], weights[f"{name}_minimum"], bias)


def _supports(problem: ExpertsProblem, platform: Any) -> str | None:
    return problem.why_not_plain() or _why_not(problem)


def _supports_packed(problem: ExpertsProblem, platform: Any) -> str | None:
    if (reason := _why_not(problem)) is not None:
        return reason
    for matrix in problem.matrices.values():
        if matrix.held.codes is Codes.E4M3 and platform.arch == "gfx942":
            return "gfx942 decodes fp8 as checkpoints have it in software, which is slower than plain weights"
        if (reason := why_not_read(linear_of(matrix, problem.dtype), platform)) is not None:
            return reason
        if matrix.held.codes is Codes.E2M1 and matrix.held.parts["scale"].dtype is not torch.uint8:
            return "reads exponents of two alone as scales of e2m1"
    return None


def _why_not(problem: ExpertsProblem) -> str | None:
    if problem.num_experts > _MAX_EXPERTS:
        return f"counts the pairs of up to {_MAX_EXPERTS} experts in registers, not {problem.num_experts}"
    if 2 * problem.intermediate_size * problem.hidden_size >= 2**31:
        return "addresses the weights of one expert by 32 bits"
    return why_not_dtype(problem.dtype, FLOATS) or why_not_in_triton(problem.activation)


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    return TritonExperts(problem, weights, ExpertsConfigs(problem, detect_platform().name).for_tokens)


def _max_rows(problem: ExpertsProblem, platform: Any) -> int | None:
    if why_not_grouped(problem, platform) is not None:
        return None
    return max(1, _PAIRS_FOR_GROUPED * problem.num_routed // problem.top_k)


def _tolerance(problem: ExpertsProblem) -> Tolerance:
    """For results of about one: what rounding rows to fp8 leaves, which the reference does not do."""
    return Tolerance(0.2, 0.05) if may_round(problem) else experts_tolerance(problem)


EXPERTS_BACKEND = Backend(
    name="triton",
    implementation="Triton grouped products, activation in the first",
    supports=_supports,
    bind=_bind,
    max_rows=_max_rows,
)
PACKED_EXPERTS_BACKEND = Backend(
    name="triton",
    implementation="Triton grouped products of codes decoded in registers, activation in the first",
    supports=_supports_packed,
    bind=_bind,
    layout=WeightLayout(
        MATRIX_LAYOUT.name,
        lambda problem, weights: pack_experts(problem, weights, MATRIX_LAYOUT, problem.dtype),
        lambda problem, source_bytes: packed_bytes(problem, MATRIX_LAYOUT, problem.dtype),
    ),
    tolerance=_tolerance,
)
