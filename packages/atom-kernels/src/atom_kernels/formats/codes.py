"""`Codes`: what is stored of each weight, before its scale."""

from __future__ import annotations

from enum import Enum

import torch

from atom_kernels.formats.nibbles import unpack_nibbles

# The magnitudes of e2m1, by its codes 0 to 7; bit 3 is the sign.
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_VALUES = torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)])


class Codes(Enum):
    """What the tensor ``weight`` of a format holds; kernels choose how to read it by this.

    PLAIN: floating point numbers, which have no scale.
    INT8: signed integers; 0 to 127 beside a minimum.
    INT4: 0 to 15, two in a byte; 8 stands for zero where there is neither a zero point nor a minimum.
    E2M1: floating point numbers of four bits, two in a byte.
    E4M3: floating point numbers of eight bits.
    """

    PLAIN = "plain"
    INT8 = "int8"
    INT4 = "int4"
    E2M1 = "e2m1"
    E4M3 = "fp8"

    @property
    def is_packed(self) -> bool:
        """Two codes share a byte, see `pack_nibbles`."""
        return self in (Codes.INT4, Codes.E2M1)

    def numbers(self, stored: torch.Tensor) -> torch.Tensor:
        """What the codes stand for, in a float32 tensor of its own ``[..., N, K]``; those of INT4 are 0 to 15."""
        if self is Codes.E2M1:
            return _E2M1_VALUES.to(stored.device)[unpack_nibbles(stored).int()]
        return (unpack_nibbles(stored) if self is Codes.INT4 else stored).to(torch.float32, copy=True)
