"""The GPU and the release that the emulator pretends to be.

The GPU is read from AITER's own variables, which `emulated_aiter` sets; the release is that of the tree that the
function lies in.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from pathlib import Path

import torch

FP8_DTYPES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}

# The release of the function that runs: set by the decorators of `binding`.
called: ContextVar[str | None] = ContextVar("called", default=None)


def arch() -> str:
    """ "gfx942" or "gfx950". Without the variable, rocminfo is asked, and there is none here."""
    named = os.environ.get("GPU_ARCHS", "native").split(";")[-1]
    if named == "native":
        raise RuntimeError("Get GPU arch from rocminfo failed: rocminfo is not installed")
    if named not in FP8_DTYPES:
        raise KeyError(f"Unknown GPU architecture: {named}")
    return named


def cu_num() -> int:
    """CUs of an MI300X or an MI355X, or what CU_NUM says."""
    return int(os.environ.get("CU_NUM", "0")) or COMPUTE_UNITS[arch()]


def fp8() -> torch.dtype:
    """The fp8 type of this architecture: the same bytes are other numbers on the other one."""
    return FP8_DTYPES[arch()]


def fp8_max() -> float:
    """240 on gfx942, 448 on gfx950."""
    return torch.finfo(fp8()).max


def release() -> str:
    """ "git" or "pypi": of the function that runs, else of the imported package."""
    return called.get() or release_of(sys.modules["aiter"].__file__ or "")


def release_of(file: str) -> str:
    """The tree that a file lies in."""
    parts = Path(file).parts
    return parts[parts.index("aiter_emulator") + 1]
