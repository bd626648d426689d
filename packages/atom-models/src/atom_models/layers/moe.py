"""Mixture of experts: routing, the chosen experts, and the shared ones that see every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.moe import RoutingProblem
from atom_kernels.moe.ops import MOE_ROUTE
from atom_kernels.select import select
from atom_models.layers.activation import GatedActivation
from atom_models.layers.experts import Experts
from atom_models.layers.layer import Layer
from atom_models.layers.linear import Linear, MergedColumnParallelLinear, ReplicatedLinear, Shard
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.layers.residual import Unsummed
from atom_models.quantization import DENSE_INPUT, UNQUANTIZED, ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class RoutingConfig:
    """How tokens choose experts; see `atom_kernels.moe.route`.

    Attributes:
        scoring: "softmax" or "sigmoid".
        renormalize: the weights of the chosen experts sum to one.
        num_groups, top_groups: only experts of the best groups can be chosen.
        group_score: "max" (DeepSeek-V2's group_limited_greedy) or "top2" (DeepSeek-V3's noaux_tc).
        scaling_factor: on the weights, after all.
        correction_bias: name, after the layer's, of a bias that only helps to choose; None where there is none.
        linear: name, after the layer's, of the router's linear.
        linear_bias: it has a bias.
        float32: the router is computed in float32 whatever the model's dtype.
    """

    scoring: str = "softmax"
    renormalize: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    scaling_factor: float = 1.0
    correction_bias: str | None = None
    linear: str = "gate"
    linear_bias: bool = False
    float32: bool = False


@dataclass(frozen=True)
class SharedExpertsConfig:
    """Experts that see every token: one gated MLP.

    Attributes:
        intermediate_size: of all of them together.
        name: after the layer's.
        gate: name, after the layer's, of a linear to one number whose sigmoid scales the result; None: not scaled.
    """

    intermediate_size: int
    name: str = "shared_experts"
    gate: str | None = None


class Router(Layer):
    """``forward(x [T, D]) -> (weights float32 [T, K], ids int32 [T, K])``. Never quantized, the same on every rank."""

    ignored_weights: frozenset[str] = frozenset()

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        routing: RoutingConfig,
        *,
        context: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        dtype = torch.float32 if routing.float32 else context.dtype
        self.linear = ReplicatedLinear(
            hidden_size,
            num_experts,
            replace(context, dtype=dtype, quantization=UNQUANTIZED),
            prefix=f"{prefix}.{routing.linear}",
            bias=routing.linear_bias,
        )
        self.problem = RoutingProblem(
            num_experts,
            top_k,
            dtype,
            scoring=routing.scoring,
            renormalize=routing.renormalize,
            correction_bias=routing.correction_bias is not None,
            num_groups=routing.num_groups,
            top_groups=routing.top_groups,
            group_score=routing.group_score,
            scaling_factor=routing.scaling_factor,
        )
        self._context = context
        self._dtype = dtype
        self._bias_name = f"{prefix}.{routing.correction_bias}" if routing.correction_bias else None
        self._bias: torch.Tensor | None = None
        self._route: Callable[[torch.Tensor], Any] = not_loaded(prefix)

    def forward(self, x: torch.Tensor) -> Any:
        return self._route(self.linear(x.to(self._dtype)))

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        if self._bias_name is None:
            return {}
        return {self._bias_name: ExpectedWeight((self.problem.num_experts,), torch.float32)}

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        self._bias = tensor.to(device=self._context.device, dtype=torch.float32, copy=True)

    def finish(self) -> None:
        weights = {} if self._bias is None else {"correction_bias": self._bias}
        self._route = select(MOE_ROUTE, self.problem, self._context.platform).prepare(weights)


class MoE(Layer):
    """``forward(x [T, D]) -> [T, D]``: the weighted sum of each token's experts, plus the shared ones.

    Where the kernels that add up the experts add the residual too (on a GPU), the result is `Unsummed`.

    Args:
        prefix: the layer's name in the checkpoint, such as ``"model.layers.3.mlp"``; experts are ``<prefix>.experts``.
        num_experts, top_k: how many there are, and to how many a token goes.
        hidden_size, intermediate_size: of a token, and inside one expert over all ranks.
        routing: how they are chosen.
        hidden_act: "silu" or "swiglu_oai" (GPT-OSS: clamped, with `swiglu_alpha` and `swiglu_limit`).
        shared_experts: None where there are none.
        expert_bias: the experts' products have biases.
        fused_transposed: how fused expert tensors lie, see `Experts`.
    """

    input_format = DENSE_INPUT

    def __init__(
        self,
        context: BuildContext,
        prefix: str,
        *,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        routing: RoutingConfig,
        hidden_act: str = "silu",
        shared_experts: SharedExpertsConfig | None = None,
        expert_bias: bool = False,
        fused_transposed: bool = False,
        swiglu_alpha: float = 1.702,
        swiglu_limit: float = 7.0,
    ) -> None:
        super().__init__()
        self.router = Router(hidden_size, num_experts, top_k, routing, context=context, prefix=prefix)
        self.experts = Experts(
            num_experts,
            top_k,
            hidden_size,
            intermediate_size,
            context=context,
            prefix=f"{prefix}.experts",
            activation=hidden_act,
            bias=expert_bias,
            fused_transposed=fused_transposed,
            alpha=swiglu_alpha,
            limit=swiglu_limit,
        )
        self.shared_experts = None
        if shared_experts is not None:
            self.shared_experts = SharedExperts(hidden_size, shared_experts, hidden_act, context=context, prefix=prefix)
        self._ranks = context.collectives
        self._adds_residual = self._ranks.size == 1 and context.platform.device == "cuda"

    def forward(self, x: torch.Tensor) -> Any:
        if self._adds_residual:
            return Unsummed(self._sum, x)
        y = self._sum(x)
        return self._ranks.all_reduce(y) if self._ranks.size > 1 else y

    def _sum(self, x: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's part of the result, plus `base` if there is one."""
        weights, ids = self.router(x)
        if self.shared_experts is not None:
            base = self.shared_experts(x, base)
        return self.experts(x, weights, ids, base)


class SharedExperts(Layer):
    """This rank's share of a gated MLP: ``[T, D] -> [T, D]``, to be summed over ranks; plus a base if one is given."""

    def __init__(
        self, hidden_size: int, shared: SharedExpertsConfig, hidden_act: str, *, context: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        size, name = shared.intermediate_size, f"{prefix}.{shared.name}"
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, {"gate_proj": size, "up_proj": size}, context, prefix=f"{name}.gate_up_proj"
        )
        size_here = self.gate_up_proj.out_features // 2
        self.act = GatedActivation(hidden_act, size_here, context, after=self.gate_up_proj)
        # Not a RowParallelLinear: the sum over ranks comes later, together with that of the routed experts.
        self.down_proj = Linear(
            size, (Shard("down_proj", hidden_size, 1),), context, prefix=f"{name}.down_proj", split_input=True
        )
        self.gate = None
        if shared.gate is not None:
            dense = replace(context, quantization=UNQUANTIZED)
            self.gate = ReplicatedLinear(hidden_size, 1, dense, prefix=f"{prefix}.{shared.gate}")

    def forward(self, x: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.act(self.gate_up_proj(x))
        if self.gate is None:
            return self.down_proj(hidden, base)
        y = self.down_proj(hidden) * torch.sigmoid(self.gate(x))
        return y if base is None else y + base
