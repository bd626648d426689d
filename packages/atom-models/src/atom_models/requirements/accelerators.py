"""Accelerators that plans know, by the memory that their makers print."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.platform import Platform

_GB = 10**9


@dataclass(frozen=True)
class Accelerator:
    """One device. Makers print decimal gigabytes or a little less than what is there: plans stay on the safe side."""

    name: str
    vendor: str
    arch: str
    memory_bytes: int

    @property
    def platform(self) -> Platform:
        """What layers select their kernels and layouts for there."""
        return Platform.rocm(self.arch) if self.vendor == "amd" else Platform.nvidia(self.arch)


ACCELERATORS = (
    Accelerator("MI300X", "amd", "gfx942", 192 * _GB),
    Accelerator("MI300A", "amd", "gfx942", 128 * _GB),
    Accelerator("MI325X", "amd", "gfx942", 256 * _GB),
    Accelerator("MI355X", "amd", "gfx950", 288 * _GB),
    Accelerator("H100", "nvidia", "sm_90", 80 * _GB),
    Accelerator("H200", "nvidia", "sm_90", 141 * _GB),
    Accelerator("B200", "nvidia", "sm_100", 180 * _GB),
    Accelerator("GB200", "nvidia", "sm_100", 186 * _GB),
)


class UnknownAcceleratorError(ValueError):
    """No accelerator of that name; the message names those that plans know."""


def accelerator(name: str) -> Accelerator:
    """The one of exactly that name."""
    return next(one for one in ACCELERATORS if one.name == name)


def find_accelerators(name: str) -> tuple[Accelerator, ...]:
    """The accelerator of that name in any case, or every one for "all".

    Raises:
        UnknownAcceleratorError: there is none.
    """
    if name.lower() == "all":
        return ACCELERATORS
    found = tuple(accelerator for accelerator in ACCELERATORS if accelerator.name.lower() == name.lower())
    if not found:
        known = ", ".join(accelerator.name for accelerator in ACCELERATORS)
        raise UnknownAcceleratorError(f"no accelerator {name!r}; plans know {known}, or all of them with 'all'")
    return found
