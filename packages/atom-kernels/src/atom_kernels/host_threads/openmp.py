"""The OpenMP runtime that torch computes with."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch


@cache
def torch_openmp() -> ctypes.CDLL | None:
    """A library through which torch's OpenMP functions are found; None where torch was built without OpenMP."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    # Symbols are looked up through the dependencies of libtorch_cpu, too.
    return library if hasattr(library, "omp_get_max_threads") else None
