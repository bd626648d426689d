"""`gather_facts`: the only look at the hardware."""

from __future__ import annotations

import importlib.metadata
import platform as host
import time
from typing import NamedTuple

import torch

from atom_kernels import settings
from atom_kernels.aiter.api import AiterApi
from atom_kernels.aiter.library import library
from atom_kernels.aiter.sources import AiterUnusableError, installed_version
from atom_kernels.host_threads import usable_cores
from atom_kernels.host_threads.probing import run_apart
from atom_kernels.platform.facts import AITER_ARCHES, BF16_FEATURES, Facts


def gather_facts() -> Facts:
    """Look at this machine. Imports AITER only where it could run, and times bfloat16 only where the CPU claims it."""
    torch_build = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    num_devices = torch.cuda.device_count() if torch_build != "cpu" else 0
    device = _describe_device(torch_build) if num_devices else _Device()
    aiter_version = installed_version()
    try_aiter = torch_build == "rocm" and device.arch in AITER_ARCHES and aiter_version is not None
    aiter, aiter_error = _try_aiter() if try_aiter else (None, None)
    features = _cpu_features()
    has_bf16 = not num_devices and any(name in features for name in BF16_FEATURES)
    return Facts(
        torch_build=torch_build,
        num_devices=num_devices,
        device_name=device.name,
        device_arch=device.arch,
        num_processors=device.num_processors,
        bytes_per_second=device.bytes_per_second,
        aiter_version=aiter_version,
        aiter=aiter,
        aiter_error=aiter_error,
        triton_version=_distribution_version("triton") or _distribution_version("pytorch-triton-rocm"),
        triton_interpret=settings.triton_interpret(),
        cpu_name=_cpu_name(),
        machine=host.machine(),
        num_cores=usable_cores(),
        cpu_features=features,
        native_error=None if num_devices else _native_error(),
        mkldnn=bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        bf16_slowdown=run_apart(_measure_bf16_slowdown) if has_bf16 else None,
    )


def _measure_bf16_slowdown() -> float:
    """Best of a few small matmuls each, interleaved; about 10 ms."""
    best = {}
    operands = {dtype: torch.ones(192, 1024, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
    for _ in range(5):
        for dtype, x in operands.items():
            start = time.perf_counter()
            torch.mm(x, x.t())
            best[dtype] = min(time.perf_counter() - start, best.get(dtype, float("inf")))
    return best[torch.bfloat16] / best[torch.float32]


class _Device(NamedTuple):
    """What accelerator 0 tells of itself."""

    name: str = ""
    arch: str = ""
    num_processors: int = 0
    bytes_per_second: float = 0.0


def _describe_device(torch_build: str) -> _Device:
    properties = torch.cuda.get_device_properties(0)
    is_rocm = torch_build == "rocm"
    arch = properties.gcnArchName.split(":")[0] if is_rocm else f"sm_{properties.major}{properties.minor}"
    # Memory moves a word at both edges of its clock, which is told in kHz. Old releases of torch do not tell it.
    clock, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return _Device(properties.name, arch, properties.multi_processor_count, 2e3 * clock * bits / 8)


def _cpu_features() -> frozenset[str]:
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    if get_capabilities is not None:
        return frozenset(name for name, value in get_capabilities().items() if value is True)
    # torch < 2.11 has no list; the kernel's flags say avx512_bf16 and amx_bf16 in the same words.
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return frozenset()
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else host.processor() or host.machine()


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _try_aiter() -> tuple[AiterApi | None, str | None]:
    try:
        return library().api, None
    except AiterUnusableError as error:
        return None, str(error)


def _native_error() -> str | None:
    from atom_kernels.native import native_unavailable

    return native_unavailable("probe")
