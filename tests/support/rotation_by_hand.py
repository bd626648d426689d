"""Rotation of test tensors by complex numbers, and small tables of it."""

from __future__ import annotations

import torch

BF16 = torch.bfloat16
POSITIONS = torch.tensor([0, 3, 12, 7, 7])


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def table(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.randn(13, width)
    return angles.cos().to(BF16), angles.sin().to(BF16)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool) -> torch.Tensor:
    """Rotation by complex numbers of ``x [T, H, D]`` at POSITIONS."""
    pairs = torch.stack(x.float().chunk(2, -1), -1) if neox else x.float().unflatten(-1, (-1, 2))
    by = torch.complex(cos.float(), sin.float())[POSITIONS[: len(x)], None]
    both = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * by)
    return torch.cat(both.unbind(-1), -1) if neox else both.flatten(-2)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)
