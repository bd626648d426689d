"""What a layer's mixture of experts is: its experts, their routing, and those that see every token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RoutingConfig:
    """How tokens choose experts; see `atom_kernels.moe.route`.

    Attributes:
        scoring: "softmax" or "sigmoid".
        renormalize: the weights of the chosen experts sum to one.
        num_groups, top_groups: only experts of the best groups can be chosen.
        group_score: "max" (DeepSeek-V2's group_limited_greedy) or "top2" (DeepSeek-V3's noaux_tc).
        scaling_factor: what the weights are multiplied by at the end.
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
        intermediate_size: the size inside all of them together.
        name: after the layer's.
        gate: name, after the layer's, of a linear to one number whose sigmoid scales the result; None: not scaled.
    """

    intermediate_size: int
    name: str = "shared_experts"
    gate: str | None = None


@dataclass(frozen=True)
class MoEConfig:
    """One layer's experts.

    Attributes:
        num_experts, top_k: how many there are, and to how many a token goes.
        hidden_size, intermediate_size: elements of a token, and inside one expert over all ranks.
        routing: how they are chosen.
        hidden_act: "silu" or "swiglu_oai" (GPT-OSS: clamped, with `swiglu_alpha` and `swiglu_limit`).
        shared_experts: None where there are none.
        expert_bias: the experts' products have biases.
        fused_transposed: fused tensors are [E, inputs, outputs] instead of [E, outputs, inputs].
        fused_in_turns: outputs of gate and up take turns in them (GPT-OSS) instead of all of gate coming first.
        name: what the checkpoint calls it in its decoder layer.
    """

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    routing: RoutingConfig = RoutingConfig()
    hidden_act: str = "silu"
    shared_experts: SharedExpertsConfig | None = None
    expert_bias: bool = False
    fused_transposed: bool = False
    fused_in_turns: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    name: str = "mlp"
