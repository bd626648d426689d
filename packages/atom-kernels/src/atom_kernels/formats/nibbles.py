"""Codes of four bits, two in a byte: the even column lies in the low half."""

from __future__ import annotations

import torch


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """``uint8 [..., K]`` of 0 to 15 -> ``uint8 [..., K / 2]``; K is even."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """``uint8 [..., K / 2] -> uint8 [..., K]``."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
