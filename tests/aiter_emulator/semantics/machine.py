"""The GPU that the emulator pretends to be: read from AITER's own variables, which `emulated_aiter` sets."""

from __future__ import annotations

import os

import torch

FP8_DTYPES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}


def arch() -> str:
    """ "gfx942" or "gfx950". Without the variable, rocminfo is asked, and there is none here."""
    named = os.environ.get("GPU_ARCHS", "native").split(";")[-1]
    if named == "native":
        raise RuntimeError("Get GPU arch from rocminfo failed: rocminfo is not installed")
    if named not in FP8_DTYPES:
        raise KeyError(f"Unknown GPU architecture: {named}")
    return named


def compute_units() -> int:
    """CUs of an MI300X or an MI355X, or what CU_NUM says."""
    return int(os.environ.get("CU_NUM", "0")) or COMPUTE_UNITS[arch()]


def fp8() -> torch.dtype:
    """The fp8 type of this architecture: the same bytes are other numbers on the other one."""
    return FP8_DTYPES[arch()]


def fp8_max() -> float:
    """240 on gfx942, 448 on gfx950."""
    return torch.finfo(fp8()).max
