"""Systems that can be simulated: what is printed of their devices and links, and which share of it steps reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom_models.requirements.accelerators import Accelerator, accelerator
from atom_models.simulation.links import Link, Links


@dataclass(frozen=True)
class Device:
    """Rates of one device.

    Attributes:
        accelerator: its memory, and for what layers choose their kernels.
        bytes_per_second: printed rate of its memory.
        operations_per_second: printed rates of dense products, by bits of a number; formats that are missing are
            multiplied in 16 bits.
        copy_share, product_share: what a large copy, and a large product in bfloat16, reach of these.
        launch_seconds: what a kernel of a captured step takes beside its work.
        printed, reached: where the printed rates and the shares come from; "measured" names our own files.
    """

    accelerator: Accelerator
    bytes_per_second: float
    operations_per_second: tuple[tuple[int, float], ...]
    copy_share: float
    product_share: float
    launch_seconds: float
    printed: str
    reached: str

    @property
    def read_rate(self) -> float:
        return self.bytes_per_second * self.copy_share

    def multiplies_in(self, bits: int) -> bool:
        """Whether it has products of numbers of so many bits."""
        return bits in dict(self.operations_per_second)

    def product_rate(self, bits: int) -> float:
        """Operations a second in numbers of so many bits, or in 16 bits where it has no such products."""
        rates = dict(self.operations_per_second)
        return rates.get(bits, rates[16]) * self.product_share


@dataclass(frozen=True)
class System:
    """Devices that are alike, in nodes that are alike."""

    name: str
    device: Device
    num_devices: int
    links: Links


class UnknownSystemError(ValueError):
    """No system of that name; the message names those that can be simulated."""


_DATA_SHEET = "the maker's data sheet, dense"
_AS_H200 = "assumed as measured on an H200"
_OF_AMD = "assumed: copies and large products by reports of others; launches by published steps of few requests"
_NVLINK_MEASURED = "measured (all-reduce-2-gpus-nvidia-h200.json); more ranks as published for H100"
_H100 = Device(
    accelerator("H100"),
    bytes_per_second=3.35e12,
    operations_per_second=((16, 989e12), (8, 1979e12)),
    copy_share=0.903,
    product_share=0.80,
    launch_seconds=4e-6,
    printed=_DATA_SHEET,
    reached="measured (gpu-nvidia-h100-80gb-hbm3.json)",
)
_H200 = replace(
    _H100,
    accelerator=accelerator("H200"),
    bytes_per_second=4.8e12,
    copy_share=0.893,
    product_share=0.81,
    reached="measured (tensor-parallel-nvidia-h200.json); launches as on an H100",
)
_B200 = Device(
    accelerator("B200"),
    bytes_per_second=8e12,
    operations_per_second=((16, 2250e12), (8, 4500e12), (4, 9000e12)),
    copy_share=0.89,
    product_share=0.75,
    launch_seconds=4e-6,
    printed=_DATA_SHEET,
    reached=_AS_H200,
)
_GB200 = replace(
    _B200, accelerator=accelerator("GB200"), operations_per_second=((16, 2500e12), (8, 5000e12), (4, 10000e12))
)
_MI300X = Device(
    accelerator("MI300X"),
    bytes_per_second=5.3e12,
    operations_per_second=((16, 1307e12), (8, 2615e12)),
    copy_share=0.81,
    product_share=0.50,
    launch_seconds=7e-6,
    printed=_DATA_SHEET,
    reached=_OF_AMD,
)
_MI325X = replace(_MI300X, accelerator=accelerator("MI325X"), bytes_per_second=6e12)
_MI355X = Device(
    accelerator("MI355X"),
    bytes_per_second=8e12,
    operations_per_second=((16, 2516e12), (8, 5033e12), (4, 10066e12)),
    copy_share=0.825,
    product_share=0.64,
    launch_seconds=7e-6,
    printed=_DATA_SHEET,
    reached=_OF_AMD,
)
_NVLINK4 = Link(450e9, 0.47, 3.6e-6, 1.1e-6, _NVLINK_MEASURED)
_NVLINK5 = replace(_NVLINK4, bytes_per_second=900e9, source="data sheet; share and latency assumed as of NVLink 4")
# Seven links to seven peers; the share is that of a published sum of 1.5 MB over eight MI355X in 12.9 us.
_XGMI = Link(448e9, 0.77, 5e-6, 0.6e-6, "data sheet; share and latency by published sums over eight", peers=7)
_XGMI_950 = replace(_XGMI, bytes_per_second=537.6e9)
_NIC_400 = Link(50e9, 0.8, 20e-6, 5e-6, "assumed: 400 Gbit/s a device; latency by published exchanges of experts")


def _node(device: Device, link: Link, num_nodes: int = 1) -> System:
    name = f"{8 * num_nodes}x{device.accelerator.name}"
    return System(name, device, 8 * num_nodes, Links(link, _NIC_400 if num_nodes > 1 else None, 8))


SYSTEMS = (
    _node(_MI300X, _XGMI),
    _node(_MI325X, _XGMI),
    _node(_MI355X, _XGMI_950),
    _node(_H100, _NVLINK4),
    _node(_H200, _NVLINK4),
    _node(_B200, _NVLINK5),
    _node(_MI355X, _XGMI_950, num_nodes=8),
    _node(_H200, _NVLINK4, num_nodes=4),
    System("GB200-NVL72", _GB200, 72, Links(_NVLINK5, None, 72)),
)


def find_system(name: str) -> System:
    """The system of that name, in any case.

    Raises:
        UnknownSystemError: there is none.
    """
    for system in SYSTEMS:
        if system.name.lower() == name.lower():
            return system
    known = ", ".join(system.name for system in SYSTEMS)
    raise UnknownSystemError(f"no system {name!r}; {known} can be simulated")
