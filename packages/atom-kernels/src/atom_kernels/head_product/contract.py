"""The product of each head: contract and problem. T: rows, H: heads, K: inputs of a head, N: its outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.formats import Mxfp4

MXFP4 = "mxfp4"
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz")
# Inputs of a row that share a scale.
GROUP = {MXFP4: 32, **dict.fromkeys(FLOAT8, 128)}
_LEAST = 1e-10


@dataclass(frozen=True)
class HeadProductProblem:
    """Shapes of the product, and what it may round.

    Attributes:
        num_heads, in_features, out_features: H, K and N.
        dtype: that of rows, weights and results.
        rounded_to: what rows and weights are rounded to, see `head_product`; None to round nothing.
    """

    num_heads: int
    in_features: int
    out_features: int
    dtype: torch.dtype
    rounded_to: str | None = None

    def __post_init__(self) -> None:
        if self.rounded_to not in (None, *GROUP):
            raise ValueError(f"heads are rounded to {', '.join(GROUP)} or not at all, not to {self.rounded_to!r}")


def head_product(x_THK: torch.Tensor, weight_HNK: torch.Tensor, rounded_to: str | None = None) -> torch.Tensor:
    """``[T, H, K]`` times ``[H, N, K]`` for each head: ``[T, H, N]`` in x's dtype, summed in float32.

    Args:
        rounded_to: rows and weights are rounded first, to the nearest number: to "float8_e4m3fn" or "float8_e4m3fnuz"
            over a scale for 128 inputs of each row, and one for all weights; or to "mxfp4", over a power of two for 32
            inputs of each row, and of each row of weights. None to round nothing.
    """
    x, weight = x_THK.float(), weight_HNK.float()
    if rounded_to == MXFP4:
        x, weight = _in_mxfp4(x), _in_mxfp4(weight)
    elif rounded_to is not None:
        dtype: torch.dtype = getattr(torch, rounded_to)
        codes, scale = float8_of_one_scale(weight, dtype)
        x, weight = _in_float8(x, dtype), codes.float() * scale
    return torch.einsum("thk,hnk->thn", x, weight).to(x_THK.dtype).contiguous()


def float8_of_one_scale(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a tensor's shape, and the float32 scale ``[1]`` that all of them share."""
    largest = torch.finfo(dtype).max
    scale = weight.float().abs().amax().clamp_(min=_LEAST).view(1) / largest
    # Casting is not defined beyond the largest number.
    return (weight.float() / scale).clamp_(-largest, largest).to(dtype), scale


def _in_float8(x_THK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    size, largest = x_THK.shape[-1], torch.finfo(dtype).max
    groups = torch.nn.functional.pad(x_THK, (0, -size % 128)).unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True).clamp_(min=_LEAST) / largest
    codes = (groups / scale).clamp_(-largest, largest).to(dtype)
    return (codes.float() * scale).flatten(-2)[..., :size]


def _in_mxfp4(x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, 1)
    return Mxfp4().dequantize(Mxfp4().quantize(rows), x.shape[-1]).view(x.shape)
