"""AITER's backends on this machine: a simulated AMD platform whose tensors are on the host, over the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atom_kernels.platform import Platform, use_platform
from emulated_aiter import emulated_aiter

ARCHES = ("gfx942", "gfx950")


@contextmanager
def on_aiter(arch: str = "gfx942", release: str = "git") -> Iterator[Platform]:
    """`detect_platform` answers with the platform inside, and ``import aiter`` with the emulator of that release."""
    with emulated_aiter(release, arch), use_platform(Platform.rocm(arch, release=release, device="cpu")) as platform:
        yield platform
