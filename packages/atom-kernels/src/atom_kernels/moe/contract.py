"""What the operators of a mixture of experts compute, in plain torch.

T: tokens, E: experts, K: experts a token goes to, G: groups of experts, D: hidden size, I: intermediate size of an
expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from atom_kernels.activation.contract import gated
from atom_kernels.activation.names import Activation, check_activation
from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.formats.weight_format import PLAIN_BY_DEFAULT

SCORINGS = ("softmax", "sigmoid")
# What ranks a group of experts: its best score, or the sum of its two best.
GROUP_SCORES = ("max", "top2")


@dataclass(frozen=True)
class RoutingProblem:
    """Attributes:
    num_experts, top_k: E and K.
    dtype: the dtype of the logits.
    scoring: "softmax" over all experts, or "sigmoid" of each.
    renormalize: the chosen scores are divided by their sum.
    correction_bias: a float32 [E] is added to the scores for choosing, and for nothing else.
    num_groups, top_groups: only experts of the best `top_groups` of G equal groups can be chosen.
    group_score: one of `GROUP_SCORES`.
    scaling_factor: the weights are multiplied by it at the end.
    """

    num_experts: int
    top_k: int
    dtype: torch.dtype = torch.float32
    scoring: str = "softmax"
    renormalize: bool = False
    correction_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise ValueError(f"scoring is {self.scoring!r}; supported: {', '.join(SCORINGS)}")
        if self.group_score not in GROUP_SCORES:
            raise ValueError(f"group_score is {self.group_score!r}; supported: {', '.join(GROUP_SCORES)}")
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            raise ValueError(f"{self.num_experts} experts do not form {self.num_groups} equal groups")
        size = self.num_experts // self.num_groups
        if not 1 <= self.top_groups <= self.num_groups:
            raise ValueError(f"top_groups is {self.top_groups}, not between 1 and {self.num_groups}")
        if not 1 <= self.top_k <= size * self.top_groups:
            raise ValueError(f"top_k is {self.top_k}, but a token can choose among {size * self.top_groups} experts")
        if self.num_groups > self.top_groups and self.group_score == "top2" and size < 2:
            raise ValueError("groups of one expert have no two best scores")


@dataclass(frozen=True)
class ExpertMatrix:
    """One matrix of every expert: its name, size [rows, columns], and the number format of all experts."""

    name: str
    rows: int
    columns: int
    held: WeightFormat

    @property
    def tensors(self) -> Mapping[str, str]:
        """Part of the format -> name among the operator's weights: ``gate_up``, ``gate_up_scale`` and so on."""
        return {part: self.name if part == "weight" else f"{self.name}_{part}" for part in self.held.parts}

    def of_expert(self, weights: Mapping[str, torch.Tensor | None], expert: int) -> dict[str, torch.Tensor]:
        """The parts of one expert's matrix.

        Raises:
            ValueError: one is missing.
        """
        parts = {}
        for part, name in self.tensors.items():
            tensor = weights.get(name)
            if tensor is None:
                raise ValueError(f"experts need the weight {name}")
            parts[part] = tensor[expert]
        return parts

    def numbers(self, weights: Mapping[str, torch.Tensor | None], expert: int) -> torch.Tensor:
        """The float32 matrix of one expert."""
        return self.held.dequantize(self.of_expert(weights, expert), self.columns)


@dataclass(frozen=True)
class ExpertsProblem:
    """Attributes:
    num_experts, top_k: the experts that are here (E), and K.
    hidden_size, intermediate_size: D and I.
    dtype: the dtype of x, the weights and the result.
    activation: what is applied to the gate; backends refuse what they do not compute.
    bias: both products of an expert have one.
    alpha, limit: swiglu_oai only.
    batch_invariant: the bits of a token's result depend on no other token.
    gate_up_format, down_format: the formats of the two products' matrices, by default plain numbers in `dtype`.
    input_format: what rows of both products may be rounded to where that makes them faster; None leaves them.
    num_absent: experts that tokens choose too and that are not here, such as those of other ranks: their id is E.
    """

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    dtype: torch.dtype
    activation: Activation = Activation.SILU
    bias: bool = False
    alpha: float = 1.702
    limit: float = 7.0
    batch_invariant: bool = False
    gate_up_format: WeightFormat = PLAIN_BY_DEFAULT
    down_format: WeightFormat = PLAIN_BY_DEFAULT
    input_format: WeightFormat | None = None
    num_absent: int = 0

    def __post_init__(self) -> None:
        check_activation(self.activation)
        for name in ("gate_up_format", "down_format"):
            object.__setattr__(self, name, getattr(self, name) or Plain(self.dtype))

    @property
    def matrices(self) -> Mapping[str, ExpertMatrix]:
        """What every expert has."""
        hidden, size = self.hidden_size, self.intermediate_size
        return {
            "gate_up": ExpertMatrix("gate_up", 2 * size, hidden, self.gate_up_format),
            "down": ExpertMatrix("down", hidden, size, self.down_format),
        }

    @property
    def num_routed(self) -> int:
        """Experts among which tokens choose, here or not."""
        return self.num_experts + self.num_absent

    @property
    def is_plain(self) -> bool:
        return self.gate_up_format == self.down_format == Plain(self.dtype)

    def why_not_plain(self) -> str | None:
        """Why a kernel of plain weights cannot run it."""
        names = dict.fromkeys(matrix.held.name for matrix in self.matrices.values())
        return None if self.is_plain else f"multiplies plain weights, not {' and '.join(names)}"


def route(
    problem: RoutingProblem, logits_TE: torch.Tensor, correction_bias_E: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token and their weights -> (float32 [T, K], int32 [T, K]), the best expert first.

    All in float32; of equal scores the lower expert wins. A vendor's kernel may list the chosen in another order, which
    changes nothing but the order of a sum. A softmax keeps the order of its logits, so the logits choose where nothing
    is added to the scores. With `renormalize` the weights equal a softmax over the chosen logits.
    Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; groups: DeepSeek-V2, https://arxiv.org/abs/2405.04434
    ("group_limited_greedy": "max"); bias and sigmoid: DeepSeek-V3, https://arxiv.org/abs/2412.19437
    ("noaux_tc": "top2").
    """
    logits = logits_TE.float()
    scores = torch.sigmoid(logits) if problem.scoring == "sigmoid" else torch.softmax(logits, dim=-1)
    choice = scores
    if problem.correction_bias and correction_bias_E is not None:
        choice = scores + correction_bias_E.float()
    elif problem.scoring == "softmax" and problem.group_score == "max":
        choice = logits
    if problem.top_groups < problem.num_groups:
        choice = _only_best_groups(problem, choice)
    # A stable sort, since torch.topk leaves open which of equal scores it takes.
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, : problem.top_k]
    weights = scores.gather(1, ids)
    if problem.renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * problem.scaling_factor, ids.to(torch.int32)


def experts(
    problem: ExpertsProblem,
    weights: Mapping[str, torch.Tensor | None],
    x_TD: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    base_TD: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of what the chosen experts make of each token, plus `base` if there is one -> [T, D].

    An expert is ``down(activation(gate(x), up(x)))``. Sums are float32; what is between two products is rounded to x's
    dtype, as is the result. The experts of a token are added in the order of `ids_TK`, and the base at last. An id of
    no expert here adds nothing; AITER's kernels take E alone as such an id, where experts are absent.

    Args:
        problem: sizes and activation.
        weights: ``gate_up`` [E, 2I, D], the I rows of gate before those of up; ``down`` [E, D, I]; with biases
            ``gate_up_bias`` [E, 2I] and ``down_bias`` [E, D]. The other tensors of a format are named after their
            matrix: ``gate_up_scale``; each has the experts first.
        x_TD: tokens.
        weights_TK, ids_TK: float32 and int32, as `route` gives them.
        base_TD: in x's dtype: the residual, or what shared experts made of x, or both.
    """
    gate_up, down = problem.matrices["gate_up"], problem.matrices["down"]
    gate_up_bias, down_bias = weights.get("gate_up_bias"), weights.get("down_bias")
    activate = activation_of(problem)
    out_TD = torch.zeros(x_TD.shape, dtype=torch.float32, device=x_TD.device)
    for slot in range(ids_TK.shape[1]):
        for expert in range(problem.num_experts):
            tokens = (ids_TK[:, slot] == expert).nonzero().squeeze(1)
            hidden = x_TD[tokens].float() @ gate_up.numbers(weights, expert).t()
            if gate_up_bias is not None:
                hidden = hidden + gate_up_bias[expert].float()
            hidden = activate(hidden.to(x_TD.dtype))
            partial = hidden.float() @ down.numbers(weights, expert).t()
            if down_bias is not None:
                partial = partial + down_bias[expert].float()
            out_TD[tokens] += partial * weights_TK[tokens, slot, None].float()
    return (out_TD if base_TD is None else out_TD + base_TD.float()).to(x_TD.dtype)


def routing_tensors(
    problem: RoutingProblem, logits_TE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a kernel of `route` reads and fills: contiguous logits, and empty weights and ids.

    Raises:
        TypeError: the logits have another size or dtype than the problem.
    """
    count, dtype = problem.num_experts, problem.dtype
    if logits_TE.dtype is not dtype or logits_TE.shape[-1] != count:
        got = f"{list(logits_TE.shape)} {logits_TE.dtype}"
        raise TypeError(f"moe_route was planned for [T, {count}] {dtype}, got {got}")
    shape = (logits_TE.shape[0], problem.top_k)
    weights_TK = logits_TE.new_empty(shape, dtype=torch.float32)
    return logits_TE.contiguous(), weights_TK, logits_TE.new_empty(shape, dtype=torch.int32)


def experts_inputs(
    problem: ExpertsProblem,
    x_TD: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    base_TD: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The inputs of `experts` as its kernels read them: contiguous.

    Raises:
        TypeError: one has another size or dtype than the problem.
    """
    pairs = (x_TD.shape[0], problem.top_k)
    if x_TD.dtype is not problem.dtype or x_TD.shape[1] != problem.hidden_size or ids_TK.shape != pairs:
        raise TypeError(
            f"moe_experts was planned for [T, {problem.hidden_size}] {problem.dtype} and [T, {problem.top_k}] "
            f"experts, got {list(x_TD.shape)} {x_TD.dtype} and {list(ids_TK.shape)}"
        )
    if weights_TK.dtype is not torch.float32 or ids_TK.dtype is not torch.int32:
        raise TypeError(f"moe_experts takes float32 weights and int32 ids, not {weights_TK.dtype}, {ids_TK.dtype}")
    if base_TD is not None and (base_TD.shape != x_TD.shape or base_TD.dtype is not x_TD.dtype):
        raise TypeError(f"moe_experts takes a base like x, not {list(base_TD.shape)} {base_TD.dtype}")
    base_TD = None if base_TD is None else base_TD.contiguous()
    return x_TD.contiguous(), weights_TK.contiguous(), ids_TK.contiguous(), base_TD


def activation_of(problem: ExpertsProblem) -> Callable[[torch.Tensor], torch.Tensor]:
    """[rows, 2I], gate first -> [rows, I]; float32 inside, rounded once."""

    def activate(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return gated(problem.activation, gate, up, alpha=problem.alpha, limit=problem.limit).to(x.dtype)

    return activate


def _only_best_groups(problem: RoutingProblem, choice_TE: torch.Tensor) -> torch.Tensor:
    """Scores with those of other groups at -inf."""
    grouped = choice_TE.unflatten(1, (problem.num_groups, -1))
    group_scores = grouped.topk(2 if problem.group_score == "top2" else 1, dim=-1).values.sum(dim=-1)
    best = group_scores.sort(dim=-1, descending=True, stable=True).indices[:, : problem.top_groups]
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
