"""Mixture of experts: routing, the chosen experts, and the shared ones that see every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.moe import RoutingProblem
from atom_kernels.moe.ops import MOE_ROUTE
from atom_kernels.select import select
from atom_models.layers.activation import GatedActivation, SigmoidGate
from atom_models.layers.layer import Layer
from atom_models.layers.linear import Linear, MergedColumnParallelLinear, ReplicatedLinear
from atom_models.layers.loadable import not_loaded
from atom_models.layers.mixture.experts import Experts
from atom_models.layers.norms.residual import Term, Unsummed
from atom_models.layers.rank_sum import RankSum
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_kernels.formats import RowRounding
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig, SharedExpertsConfig


class Router(WeightedLayer):
    """``forward(x [T, D]) -> (weights float32 [T, K], ids int32 [T, K])``. Never quantized, the same on every rank."""

    def __init__(self, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__(context)
        routing = config.routing
        dtype = torch.float32 if routing.float32 else context.dtype
        self.linear = ReplicatedLinear(
            config.hidden_size,
            config.num_experts,
            replace(context, dtype=dtype),
            prefix=f"{prefix}.{routing.linear}",
            bias=routing.linear_bias,
            quantized=False,
        )
        self.problem = RoutingProblem(
            config.num_experts,
            config.top_k,
            dtype,
            scoring=routing.scoring,
            renormalize=routing.renormalize,
            correction_bias=routing.correction_bias is not None,
            num_groups=routing.num_groups,
            top_groups=routing.top_groups,
            group_score=routing.group_score,
            scaling_factor=routing.scaling_factor,
        )
        self._dtype = dtype
        if routing.correction_bias is not None:
            name, shape = f"{prefix}.{routing.correction_bias}", (config.num_experts,)
            self.expect(name, shape, slot="correction_bias", dtype=torch.float32)
        self._route: Callable[[torch.Tensor], Any] = not_loaded(prefix)

    def forward(self, x: torch.Tensor) -> Any:
        return self._route(self.linear(x.to(self._dtype)))

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._route = select(MOE_ROUTE, self.problem, self._context.platform).prepare(weights)


class MoE(Layer):
    """``forward(x [T, D]) -> [T, D]``: the weighted sum of each token's experts, plus the shared ones.

    Where the kernels that add up the experts add the residual too (on a GPU), the result is `Unsummed`; where ranks
    sum by a kernel of ours, it is `Unreduced` or `Sent`.

    Args:
        prefix: the layer's name in the checkpoint, such as ``"model.layers.3.mlp"``; experts are ``<prefix>.experts``.
    """

    max_normed_rows = 0
    row_rounding: RowRounding | None = None

    def __init__(self, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self.router = Router(config, context, prefix=prefix)
        self.experts = Experts(config, context, prefix=f"{prefix}.experts")
        self.shared_experts = None
        if config.shared_experts is not None:
            self.shared_experts = SharedExperts(config.shared_experts, config, context, prefix=prefix)
        self._over_ranks = RankSum(config.hidden_size, context)
        self._adds_residual = context.collectives.size == 1 and context.platform.device == "cuda"

    def forward(self, x: torch.Tensor) -> Term:
        if self._adds_residual:
            return Unsummed(self._sum, x)
        if send := self._over_ranks.sender(x.shape[0]):
            return send(self.experts.in_runs(x, *self._routed(x)))
        return self._over_ranks(self._sum(x))

    def _sum(self, x: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's part of the result, plus `base` if there is one."""
        return self.experts(x, *self._routed(x, base))

    def _routed(self, x: torch.Tensor, base: torch.Tensor | None = None) -> tuple[Any, Any, torch.Tensor | None]:
        """Each token's experts, their weights first, and what their sum is added to."""
        weights, ids = self.router(x)
        return weights, ids, base if self.shared_experts is None else self.shared_experts(x, base)


class SharedExperts(Layer):
    """This rank's share of a gated MLP: ``[T, D] -> [T, D]``, to be summed over ranks; plus a base if one is given."""

    def __init__(self, shared: SharedExpertsConfig, config: MoEConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        size, name = shared.intermediate_size, f"{prefix}.{shared.name}"
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, {"gate_proj": size, "up_proj": size}, context, prefix=f"{name}.gate_up_proj"
        )
        size_here = self.gate_up_proj.out_features // 2
        # Not a RowParallelLinear: the sum over ranks comes later, together with that of the routed experts.
        columns = context.even_run(size, f"{name}.down_proj: in_features")
        self.down_proj = Linear(size, hidden_size, context, prefix=f"{name}.down_proj", columns=columns)
        self.act = GatedActivation(config.hidden_act, size_here, context, after=self.gate_up_proj, feeds=self.down_proj)
        self.gate = None
        if shared.gate is not None:
            self.gate = ReplicatedLinear(hidden_size, 1, context, prefix=f"{prefix}.{shared.gate}", quantized=False)
            self._gated = SigmoidGate(1, hidden_size, context, one_gate=True)

    def forward(self, x: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.act(self.gate_up_proj(x))
        if self.gate is None:
            return self.down_proj(hidden, base)
        return self._gated(self.down_proj(hidden), self.gate(x)[..., None], base)
