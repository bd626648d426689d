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
