"""What a linear waits for: its matrices in the checkpoint's layout, and its bias."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from atom_kernels.adapters import LowRankTerm
from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.triton.packed_product import norms_while_rounding
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.layers.norms.residual import Normed, Rounded, Unnormed
from atom_models.layers.weights import HeldWeights, RankWeight, Weights
from atom_models.quantization import LINEARS, HeldFormat
from atom_models.quantization.packing import held_problem


class LinearWeights:
    """The weights of one plan.

    Args:
        plain: the problem of plain weights.
        held: how they are held.
        matrices: one below the other.

    Attributes:
        problem: the problem in the format in which the weights are held.
    """

    def __init__(
        self,
        plain: LinearProblem,
        held: HeldFormat,
        matrices: Sequence[StoredMatrix],
        *,
        platform: Platform,
        device: torch.device | str,
    ) -> None:
        self.matrices = MatrixStack(matrices, device, num_rows=plain.out_features, keeps_bias=plain.bias)
        self._plain, self._held, self._platform = plain, held, platform
        self.problem = self._problem_on(platform)

    @property
    def plan(self) -> Plan:
        return plan_linear(self.problem, self._platform)

    @property
    def rounds_as_asked(self) -> bool:
        """Whether a kernel rounds rows that the checkpoint leaves as they are."""
        return self.problem.input_format is not None and self._held.inputs is None

    def _is_packed_on(self, platform: Platform) -> bool:
        return not self._problem_on(platform).is_plain

    def _problem_on(self, platform: Platform) -> LinearProblem:
        wanted = self._held.weights or self.matrices.weight_format
        return held_problem(LINEARS, self._plain, (wanted,), self._held, platform)

    def end_with_silu_and_mul(self) -> None:
        """Before loading: the plan gives ``silu(first half) * second half`` of the outputs."""
        self.problem = replace(self.problem, out_features=self.problem.out_features // 2, gated=True)

    def hold_in(self, weight_format: WeightFormat) -> bool:
        """Before loading: takes on the format of a matrix that it will be tied to, if a kernel reads it."""
        problem = held_problem(LINEARS, self._plain, (weight_format,), HeldFormat(), self._platform)
        if not problem.is_plain:
            self.problem = problem
        return not problem.is_plain

    def weights(self, may_be_packed: bool) -> Weights:
        """What the layer says of them."""
        rows, stack = self.problem.weight_rows, self.matrices
        bias = [RankWeight((rows,), rows * self.problem.dtype.itemsize)] if self.problem.bias else []
        return Weights(
            stack.expected,
            [stack.on_rank(), *bias],
            lambda: HeldWeights.run_by(self.plan, self.problem.weight_format.name),
            names=tuple(matrix.name for matrix in stack.matrices),
            layouts=tuple(matrix.layout for matrix in stack.matrices),
            asked=stack.matrices[0].name,
            packed_on=self._is_packed_on if may_be_packed else None,
        )

    def finish(self, tied: Mapping[str, torch.Tensor] | None = None) -> Callable[..., torch.Tensor]:
        """What runs them, see `prepare`.

        Args:
            tied: a matrix that is there already, plain or in the format of the problem, used without copying it.
        """
        held = self.problem.weight_format
        if tied is None:
            tensors = self.matrices.take(held)
        elif len(tied) > 1 or held == Plain(tied["weight"].dtype):
            tensors = dict(tied)
        else:
            tensors = held.quantize(tied["weight"])
        if self.problem.bias:
            tensors["bias"] = self.matrices.take_bias()
        return prepare(self.plan, tensors)


def plan_linear(problem: LinearProblem, platform: Platform) -> Plan:
    """The plan of a linear, which gets its neighbors where kernels take them in."""
    plan = select(LINEAR, problem, platform)
    return select(LINEAR, replace(problem, neighbors=True), platform) if plan.takes_neighbors else plan


def most_rows_with_term(plan: Plan) -> int:
    """Up to so many rows `prepare` gives what adds the term of adapters, before what follows the product."""
    if plan.problem.neighbors:
        return sys.maxsize
    first = plan.rows[0]
    return first.most_rows_with_term if first.max_rows is None else min(first.most_rows_with_term, first.max_rows)


def max_fused_rows(plan: Plan) -> int:
    """Up to so many rows it pays to leave the norm before the linear and the residual after it to its kernel."""
    return (plan.rows[0].max_rows or 0) if plan.problem.neighbors else 0


def max_normed_rows(plan: Plan, platform: Platform) -> int:
    """The same for the norm alone. Where the kernel that rounds rows norms them, however many there are, it pays."""
    rounds = plan.problem.neighbors and norms_while_rounding(plan.problem, platform)
    return sys.maxsize if rounds else max_fused_rows(plan)


def prepare(plan: Plan, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``apply(x, residual=None, low_rank=None)`` with those weights; without neighbors ``apply(x, low_rank=None)``.

    x may be `Unnormed`, and there may be a residual, in fused rows. It may be `Rounded` where the plan says how.

    Args:
        weights: the tensors of the format, and "bias" if there is one. The caller drops them.
    """
    run = plan.prepare(weights)
    if not plan.problem.neighbors:
        return run

    def apply(x: Normed, residual: torch.Tensor | None = None, low_rank: LowRankTerm | None = None) -> torch.Tensor:
        if isinstance(x, Rounded):
            return run(x.codes_TD, None, 0.0, 0.0, residual, x.scale_TG)
        inputs = (*(x if isinstance(x, Unnormed) else (x, None, 0.0, 0.0)), residual)
        return run(*inputs) if low_rank is None else run(*inputs, None, low_rank)

    return apply
