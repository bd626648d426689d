"""Products in Triton of MXFP4 weights, whose kernels round rows to MXFP4 as they read them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine, mx
from .checks import check_shape, detect_unless
from .shuffle import require_plain

# Inputs of a tile; smaller matrices have one, of the next power of two.
_TILE, _LEAST_TILE = 512, 64


def gemm_a16wfp4(x: Tensor, w: Tensor, w_scales: Tensor, dtype: torch.dtype | None, y: Tensor | None) -> Tensor:
    """``[M, K] x [N, K / 2] -> [M, N]`` over tiles of 512 inputs."""
    assert machine.arch() == "gfx950", "MXFP4 is not available on your device"
    check_shape("w", w, None, None)
    size = 2 * w.shape[1]
    check_shape("x", x, None, size)
    tile = max(min(_TILE, 1 << (size - 1).bit_length()), _LEAST_TILE)
    # Codes past the end are masked, scales are not: behind the last row any byte may be one that is no number.
    detect_unless(size % tile == 0, f"of {size} inputs the last tile of {tile} reads scales that are not there")
    out = rounded_product(x, w, w_scales).to(dtype or torch.bfloat16)
    if y is None:
        return out
    check_shape("y", y, *out.shape)
    return y.copy_(out)


def rounded_product(x: Tensor, w: Tensor, w_scales: Tensor) -> Tensor:
    """float32 of ``x @ w.T``, or of one such product for each batch."""
    check_shape("w_scales", w_scales, *w.shape[:-1], 2 * w.shape[-1] // mx.BLOCK)
    detect_unless(w.element_size() == w_scales.element_size() == 1, "codes and exponents are bytes")
    require_plain("w", w)
    rows = mx.decode(_codes(x)) * mx.spread(_scale(x))
    weight = mx.decode(w) * mx.spread(mx.exponents_as_numbers(w_scales))
    return rows @ weight.transpose(-1, -2)


def _scale(x: Tensor) -> Tensor:
    """A power of two for each block: the largest number's, which counts as the next one from 1.75 times on, over 4."""
    most = x.float().abs().unflatten(-1, (-1, mx.BLOCK)).amax(-1)
    mantissa, exponent = torch.frexp(most)
    exponent = torch.where(mantissa >= 0.875, exponent + 1, exponent) - 3
    return torch.exp2(torch.where(most > 0, exponent, -127).clamp(-127, 127).float())


def _codes(x: Tensor) -> Tensor:
    values = x.float() / mx.spread(_scale(x))
    return mx.encode(values) if machine.release() == "git" else mx.encode_halves_up(values)
