"""The least time of a module in a step: its matrices are read once, or multiplied with the step's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_server.traces.trace_file import TraceError
from atom_server.traces.work import Step

if TYPE_CHECKING:
    from atom_core.models import Device

# Devices whose rates are known, by what they are called in a trace.
NAMES = ("MI300X", "MI325X", "MI355X", "H100", "H200", "B200")


@dataclass(frozen=True)
class Roofline:
    """Least times on one device.

    Attributes:
        read_rate: bytes a second that a large copy reaches.
        product_rates: operations a second that a large product reaches, by bits of a number.
        matrices: what modules multiply with, by their names.
    """

    name: str
    read_rate: float
    product_rates: Mapping[int, float]
    matrices: Mapping[str, Mapping[str, Any]]

    def least_microseconds(self, step: Step, module: str) -> float | None:
        """None for a module without matrices of its own, such as a norm, or with a cache."""
        if (matrix := self.matrices.get(module)) is None:
            return None
        top_k, num_experts = matrix["experts"]
        rows = step.num_requests if matrix["is_head"] else step.num_tokens
        # Uniform routing: the share of the experts that some token has chosen.
        touched = 1 - (1 - top_k / num_experts) ** rows if num_experts > 1 else 1.0
        reading = touched * matrix["bytes"] / self.read_rate
        multiplying = 2 * rows * matrix["numbers"] * top_k / num_experts / self._product_rate(matrix)
        return 1e6 * max(reading, multiplying)

    def _product_rate(self, matrix: Mapping[str, Any]) -> float:
        """The rate of products of numbers as they are kept, or of 16 bits where the device has no such products."""
        bits = next((bits for bits in (4, 8) if matrix["bytes"] * 8 < matrix["numbers"] * bits * 1.4), 16)
        return self.product_rates.get(bits, self.product_rates[16])


def find_roofline(
    asked: str | None, devices: Sequence[str], matrices: Mapping[str, Mapping[str, Any]]
) -> Roofline | None:
    """That of the device that is asked for, or else of the trace's own; None where its rates are not known.

    Raises:
        TraceError: the one that is asked for is unknown, or the trace does not say what modules multiply with.
    """
    if asked is not None and not matrices:
        raise TraceError(
            f"--on {asked}: the trace does not say what modules multiply with; record it with --mark-trace"
        )
    if asked is not None and asked.upper() not in NAMES:
        raise TraceError(f"--on {asked}: the rates of {', '.join(NAMES)} are known")
    name = asked.upper() if asked else next((name for name in NAMES for device in devices if name in device), None)
    if name is None or not matrices:
        return None
    from atom_core.models import find_system

    device: Device = find_system(f"8x{name}").device
    rates = {bits: device.product_rate(bits) for bits, _ in device.operations_per_second}
    return Roofline(name, device.read_rate, rates, matrices)
