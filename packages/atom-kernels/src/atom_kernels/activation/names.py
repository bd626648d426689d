"""The one list of activations. A backend names those that it computes and refuses the others."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Activation(StrEnum):
    """An activation of one value; in a gated MLP its result is multiplied by a second value, called up.

    SILU: ``x * sigmoid(x)``.
    GELU, GELU_TANH: by erf, and the approximation by tanh.
    QUICK_GELU: ``x * sigmoid(1.702 * x)``, the approximation of CLIP.
    RELU, RELU2: ``max(x, 0)``, and its square.
    SWIGLU_OAI: gated only; GPT-OSS's clamped ``x * sigmoid(alpha * x) * (up + 1)``.
    """

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    RELU = "relu"
    RELU2 = "relu2"
    SWIGLU_OAI = "swiglu_oai"


# What needs no second value.
UNGATED = tuple(activation for activation in Activation if activation is not Activation.SWIGLU_OAI)


def check_activation(name: str, allowed: Collection[Activation] = tuple(Activation)) -> Activation:
    """The activation called `name`.

    Raises:
        ValueError: it is not one of those allowed.
    """
    if name not in allowed:
        raise ValueError(f"activation is {name!r}; supported: {', '.join(allowed)}")
    return Activation(name)
