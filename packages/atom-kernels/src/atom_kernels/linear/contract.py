"""What a linear computes, in plain torch. T: tokens, K: input features, N: output features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom_kernels.activation.contract import gated_activation
from atom_kernels.activation.names import Activation
from atom_kernels.adapters.contract import LowRankTerm, add_low_rank
from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.formats.weight_format import PLAIN_BY_DEFAULT
from atom_kernels.norm.contract import rms_norm


@dataclass(frozen=True)
class LinearProblem:
    """``[T, in_features] -> [T, out_features]`` in `dtype`.

    Attributes:
        out_dtype: the dtype of the result where it is not `dtype`: float32, so that logits keep the sums as they are.
        weight_format: the weight's format, by default plain numbers in `dtype`.
        input_format: what rows of x may be rounded to where that makes a product faster; None leaves them as they are.
        gated: the weight's first out_features rows give the gate, as many more give up; the result is silu(gate) * up.
        neighbors: whether calls may bring more than x: a norm of it, scales of rows that are rounded already, a
            residual, a term of adapters. Which of them a call brings may depend on its number of rows.
    """

    in_features: int
    out_features: int
    dtype: torch.dtype
    bias: bool = False
    out_dtype: torch.dtype | None = None
    weight_format: WeightFormat = PLAIN_BY_DEFAULT
    input_format: WeightFormat | None = None
    gated: bool = False
    neighbors: bool = False

    def __post_init__(self) -> None:
        if self.out_dtype not in (None, torch.float32):
            raise ValueError(f"out_dtype is {self.out_dtype}; a linear gives its input's dtype or float32")
        object.__setattr__(self, "weight_format", self.weight_format or Plain(self.dtype))

    @property
    def weight_rows(self) -> int:
        return self.out_features * (2 if self.gated else 1)

    @property
    def product(self) -> LinearProblem:
        """The product alone, which nothing stands around."""
        return replace(self, out_features=self.weight_rows, gated=False, neighbors=False)

    @property
    def is_alone(self) -> bool:
        """Whether nothing stands around the product."""
        return not (self.gated or self.neighbors)

    @property
    def is_plain(self) -> bool:
        """Whether weights are plain numbers in `dtype`."""
        return self.weight_format == Plain(self.dtype)

    def why_not_plain(self) -> str | None:
        """Why a kernel of plain weights cannot run it."""
        return None if self.is_plain else f"multiplies plain weights, not {self.weight_format.name}"

    @property
    def result_dtype(self) -> torch.dtype:
        return self.out_dtype or self.dtype


def linear(
    x_TK: torch.Tensor,
    weight_NK: torch.Tensor,
    bias_N: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    norm_weight_K: torch.Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
    gated: bool = False,
    residual_TN: torch.Tensor | None = None,
    input_format: WeightFormat | None = None,
    row_scale_TG: torch.Tensor | None = None,
    low_rank: LowRankTerm | None = None,
) -> torch.Tensor:
    """``residual + act(rms_norm(x) @ weight.T + bias + low_rank)`` -> [T, N], of which all but the product is optional.

    The norm (`rms_norm`; without `norm_weight_K` there is none), the term of adapters, the activation (the gated silu,
    if `gated`) and the residual may each be left out. What is multiplied may be rounded to `input_format`; adapters
    multiply it as it was. Summed in float32, rounded once to `out_dtype`, by default x's, at the end. With
    `row_scale_TG` x is rounded already: codes, a scale for each group of a row.
    """
    x = x_TK.float()
    if row_scale_TG is not None:
        x, input_format = (x.unflatten(1, (row_scale_TG.shape[1], -1)) * row_scale_TG.unsqueeze(-1)).flatten(1), None
    if norm_weight_K is not None:
        x = rms_norm(x, norm_weight_K, eps, weight_offset=norm_offset)
    multiplied = x if input_format is None else input_format.dequantize(input_format.quantize(x), x.shape[-1])
    out = multiplied @ weight_NK.float().t()
    out = out if bias_N is None else out + bias_N.float()
    if low_rank is not None:
        add_low_rank(out, x, low_rank.places_T, low_rank.a_NRI, low_rank.b_NrO, parts=low_rank.parts)
    if gated:
        out = gated_activation(out, Activation.SILU)
    return (out if residual_TN is None else out + residual_TN.float()).to(out_dtype or x_TK.dtype)
