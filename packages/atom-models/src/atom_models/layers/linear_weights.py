"""What a linear waits for: its matrices in the checkpoint's layout, and its bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.linear import FusedLinearProblem
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_models.layers.held_weights import HeldWeights
from atom_models.layers.loadable import RankWeight
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.quantization import HeldFormat
from atom_models.quantization.linear_plan import held_problem, plan_linear, prepare


class LinearWeights:
    """The weights of one plan.

    Args:
        plain: the problem of plain weights.
        held: how they are held.
        matrices: one below the other.

    Attributes:
        problem: with the format in which the weights are held.
        bias: of all matrices, if the problem has one; zeros where nothing was loaded.
    """

    def __init__(
        self,
        plain: FusedLinearProblem,
        held: HeldFormat | None,
        matrices: Sequence[StoredMatrix],
        *,
        platform: Platform,
        device: torch.device | str,
    ) -> None:
        self.matrices = MatrixStack(matrices, device, plain.out_features)
        self._plain, self._held, self._platform, self._device = plain, held, platform, device
        self.problem = self._problem_on(platform)
        self._bias: torch.Tensor | None = None

    @property
    def bias(self) -> torch.Tensor:
        if self._bias is None:
            self._bias = torch.zeros(self.problem.weight_rows, dtype=self.problem.dtype, device=self._device)
        return self._bias

    @property
    def plan(self) -> Plan:
        return plan_linear(self.problem, self._platform)

    def is_quantized(self, platform: Platform) -> bool:
        """Whether the weights would be held in another format than plain numbers there."""
        return self._problem_on(platform).weight_format is not None

    def _problem_on(self, platform: Platform) -> FusedLinearProblem:
        return held_problem(self._plain, self._held, self.matrices.weight_format, platform)

    def end_with_silu_and_mul(self) -> None:
        """Before loading: the plan gives ``silu(first half) * second half`` of the outputs."""
        self.problem = replace(self.problem, out_features=self.problem.out_features // 2, gated=True)

    def hold_in(self, weight_format: WeightFormat) -> bool:
        """Before loading: takes on the format of a matrix that it will be tied to, if a kernel reads it."""
        problem = held_problem(self._plain, HeldFormat(), weight_format, self._platform)
        if problem.weight_format is not None:
            self.problem = problem
        return problem.weight_format is not None

    def held_weights(self) -> HeldWeights:
        """What reports say of them."""
        names, stored = zip(*((matrix.name, matrix.layout.name) for matrix in self.matrices.matrices), strict=True)
        return HeldWeights.run_by(
            self.plan, names, asked=names[0], stored=" and ".join(dict.fromkeys(stored)), held=self.problem.held.name
        )

    def weights_on_rank(self) -> list[RankWeight]:
        rows = self.problem.weight_rows
        bias = [RankWeight((rows,), rows * self.problem.dtype.itemsize)] if self.problem.bias else []
        return [self.matrices.on_rank(), *bias]

    def finish(self, tied: Mapping[str, torch.Tensor] | None = None) -> Callable[..., torch.Tensor]:
        """What runs them, see `prepare`.

        Args:
            tied: a matrix that is there already, plain or in the format of the problem, used without copying it.
        """
        held = self.problem.held
        if tied is None:
            tensors = self.matrices.take(held)
        elif len(tied) > 1 or held == Plain(tied["weight"].dtype):
            tensors = dict(tied)
        else:
            tensors = held.quantize(tied["weight"])
        bias, self._bias = self.bias if self.problem.bias else None, None
        return prepare(self.plan, tensors if bias is None else {**tensors, "bias": bias})
