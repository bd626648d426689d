"""What the activations compute, in plain torch.

T: tokens, I: intermediate size, 2I: gate and up, C: columns of a row, G: groups of them, d: gates of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.activation.names import UNGATED, Activation, check_activation
from atom_kernels.dtypes import unplanned


@dataclass(frozen=True)
class GatedActivationProblem:
    """Attributes:
    intermediate_size: I; inputs are [T, 2I], outputs [T, I].
    dtype: the dtype of both.
    activation: what is applied to the gate; backends refuse what they do not compute.
    alpha, limit: swiglu_oai only.
    """

    intermediate_size: int
    dtype: torch.dtype
    activation: Activation
    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        check_activation(self.activation)

    def check_input(self, x: torch.Tensor) -> None:
        """Raises TypeError for an input of another width or dtype."""
        if x.dtype is not self.dtype or x.shape[-1] != 2 * self.intermediate_size:
            raise unplanned("gated_activation", x, 2 * self.intermediate_size, self.dtype)


@dataclass(frozen=True)
class ActivationProblem:
    """Attributes:
    size: the size of the last dimension.
    dtype: the dtype of the input and the result.
    activation: one of `UNGATED`.
    """

    size: int
    dtype: torch.dtype
    activation: Activation

    def __post_init__(self) -> None:
        check_activation(self.activation, UNGATED)


@dataclass(frozen=True)
class SigmoidGateProblem:
    """Rows have `groups` times `size` elements, each with a gate of its own, or `one_gate` for each group."""

    groups: int
    size: int
    dtype: torch.dtype
    one_gate: bool = False

    @property
    def gates_of_group(self) -> int:
        return 1 if self.one_gate else self.size

    def check_inputs(self, x: torch.Tensor, gate: torch.Tensor, base: torch.Tensor | None) -> None:
        """Raises TypeError for inputs of another width or dtype."""
        columns = self.groups * self.size
        for tensor in (x,) if base is None else (x, base):
            if tensor.dtype is not self.dtype or tensor.shape[-1] != columns:
                raise unplanned("sigmoid_gate", tensor, columns, self.dtype)
        if gate.dtype is not self.dtype or gate.shape[1:] != (self.groups, self.gates_of_group):
            raise unplanned("sigmoid_gate", gate, self.gates_of_group, self.dtype)


def activation(x: torch.Tensor, name: Activation) -> torch.Tensor:
    """The activation called `name` of each value, in float32, rounded once to x's dtype.

    quick_gelu: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415, section 2.
    relu2: So et al. 2021, "Primer", https://arxiv.org/abs/2109.08668.
    """
    return _activate(x.float(), name).to(x.dtype)


def gated(
    name: Activation, gate: torch.Tensor, up: torch.Tensor, *, alpha: float = 1.702, limit: float = 7.0
) -> torch.Tensor:
    """``activation(gate) * up`` of float32 tensors.

    swiglu_oai is ``gate * sigmoid(alpha * gate) * (up + 1)``, where `limit` bounds the gate from above and up on both
    sides.
    """
    if name == Activation.SWIGLU_OAI:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    return _activate(gate, name) * up


def gated_activation(
    x_T2I: torch.Tensor, name: Activation, *, alpha: float = 1.702, limit: float = 7.0
) -> torch.Tensor:
    """``activation(gate) * up`` of the halves of the last dimension; float32 inside, rounded once.

    Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202. In swiglu_oai gate and up are
    interleaved, as even and odd elements: OpenAI 2025, https://github.com/openai/gpt-oss (torch/model.py, swiglu).
    """
    x = x_T2I.float()
    gate, up = (x[..., ::2], x[..., 1::2]) if name == Activation.SWIGLU_OAI else x.chunk(2, dim=-1)
    return gated(name, gate, up, alpha=alpha, limit=limit).to(x_T2I.dtype)


def sigmoid_gate(x_TC: torch.Tensor, gate_TGd: torch.Tensor, base_TC: torch.Tensor | None = None) -> torch.Tensor:
    """``x * sigmoid(gate)``, plus `base` if there is one; float32 inside, rounded once.

    Qiu et al. 2025, "Gated Attention for Large Language Models", https://arxiv.org/abs/2505.06708.
    """
    x = x_TC.float().unflatten(1, (gate_TGd.shape[1], -1))
    out = (x * torch.sigmoid(gate_TGd.float())).flatten(1)
    return (out if base_TC is None else out + base_TC.float()).to(x_TC.dtype)


def _activate(x: torch.Tensor, name: Activation) -> torch.Tensor:
    functional = torch.nn.functional
    match name:
        case Activation.SILU:
            return functional.silu(x)
        case Activation.GELU:
            return functional.gelu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.QUICK_GELU:
            return x * torch.sigmoid(1.702 * x)
        case Activation.RELU:
            return functional.relu(x)
        case Activation.RELU2:
            return functional.relu(x).square()
    raise ValueError(f"activation is {name!r}; of one value there are {', '.join(UNGATED)}")
