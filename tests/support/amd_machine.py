"""An AMD machine to test on: AITER's emulator, and a platform whose tensors stay on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atom_kernels.platform import Platform, use_platform
from emulated_aiter import emulated_aiter


@contextmanager
def amd_machine(arch: str = "gfx942", release: str = "git") -> Iterator[Platform]:
    """Inside, `detect_platform` answers with an AMD GPU of `arch`, and ``import aiter`` with the emulator of `release`.

    Kernels that were bound inside must not be called outside: their AITER is gone.
    """
    with emulated_aiter(release, arch), use_platform(Platform.rocm(arch, release=release, device="cpu")) as platform:
        yield platform
