"""What rounding leaves of activations on AMD machines, written apart from adapters and from the emulator."""

from __future__ import annotations

import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, WeightFormat


def rounded_rows(x: torch.Tensor, weights: WeightFormat, arch: str, release: str) -> torch.Tensor:
    """What is left of rows, written apart from adapters and emulator: by the publisher's rules on that machine."""
    x = x.float()
    if weights == Mxfp4():
        blocks = x.unflatten(1, (-1, 32))
        most = blocks.abs().amax(-1, keepdim=True)
        if release == "git":
            scale = torch.exp2(torch.ceil(torch.log2(most / 6)))
        else:
            low = torch.exp2(torch.floor(torch.log2(most)))
            scale = torch.where(most / low >= 1.5, 2 * low, low) / 4
        # Where two are as near, the first is taken: the even code.
        grid = torch.tensor([0, 1, 2, 4, -1, -2, -4, 0.5, 1.5, 3, 6, -0.5, -1.5, -3, -6])
        nearest = (blocks / scale).unsqueeze(-1).sub(grid).abs().argmin(-1)
        return (grid[nearest] * scale).flatten(1)
    if weights == Integers(8):
        scale = x.abs().amax(1, keepdim=True) / 127
        return (x / scale).round() * scale
    parts = x.unflatten(1, (-1, 128 if weights == Float8(128, 128) else x.shape[1]))
    dtype = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    scale = parts.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max
    return ((parts / scale).to(dtype).float() * scale).flatten(1)


def rounded_heads(x_THK: torch.Tensor, rounded_to: str, release: str) -> torch.Tensor:
    """What is left of rows that a product of heads rounds as it reads them.

    Where two e2m1 numbers are as near, kernels from git take the even code, and those on PyPI the larger one.
    """
    x = x_THK.float()
    if rounded_to == "mxfp4":
        blocks = x.unflatten(-1, (-1, 32))
        most = blocks.abs().amax(-1, keepdim=True).clamp(min=2**-120)
        low = torch.exp2(torch.floor(torch.log2(most)))
        scale = torch.where(most / low >= 1.75, 2 * low, low) / 4
        sizes = [0, 1, 2, 4, 0.5, 1.5, 3, 6] if release == "git" else [6, 4, 3, 2, 1.5, 1, 0.5, 0]
        grid = torch.tensor(sizes)
        nearest = (blocks.abs() / scale).unsqueeze(-1).sub(grid).abs().argmin(-1)
        return (grid[nearest] * scale * blocks.sign()).flatten(-2)
    size, dtype = x.shape[-1], getattr(torch, rounded_to)
    parts = [x[..., first : first + 128] for first in range(0, size, 128)]
    scales = [part.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(dtype).max for part in parts]
    return torch.cat([(part / scale).to(dtype).float() * scale for part, scale in zip(parts, scales, strict=True)], -1)
