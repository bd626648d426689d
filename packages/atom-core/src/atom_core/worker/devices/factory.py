"""`device_of`: the worker's device by its name."""

from __future__ import annotations

from atom_core.worker.devices.protocol import WorkerDevice


def device_of(name: str) -> WorkerDevice:
    """The device that torch calls `name`: "cpu" or "cuda" (ROCm builds say "cuda" too)."""
    if name == "cpu":
        from atom_core.worker.devices.cpu import Cpu

        return Cpu()
    from atom_core.worker.devices.gpu import Gpu

    return Gpu()
