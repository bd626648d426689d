"""The only hardware probe: what this machine has, which backends can run on it, and whether bfloat16 is fast."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform as host
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from atom_kernels import settings
from atom_kernels.aiter.api import AiterApi, known_api
from atom_kernels.aiter.library import library
from atom_kernels.aiter.sources import DISTRIBUTION, AiterUnusableError, installed_version
from atom_kernels.host_threads import usable_cores
from atom_kernels.host_threads.probing import run_apart
from atom_kernels.operator import BACKEND_ORDER

# The architectures that AITER has kernels for, and the GPU that names a simulated platform of each.
AITER_ARCHES = {"gfx942": "AMD Instinct MI300X", "gfx950": "AMD Instinct MI355X"}
_BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16", "arm_bf16", "sve_bf16")


@dataclass(frozen=True)
class Facts:
    """Everything that detection looks at. Tests pass facts of machines that they do not have.

    Attributes:
        torch_build: "cpu", "cuda" or "rocm": what this torch was compiled for.
        num_devices: accelerators that torch can see.
        device_name, device_arch: what accelerator 0 is; its architecture is such as "gfx942" or "sm_90".
        num_processors: its processors (NVIDIA: SMs, AMD: compute units); 0 if not known.
        bytes_per_second: what its memory moves at most; 0 if not known.
        aiter_version: the distribution `amd-aiter`'s, None if absent (`aiter` alone is the name of another project).
        aiter: what it offers, where it could be imported; None elsewhere.
        aiter_error: why it could not be used where it was tried.
        triton_version: the importable triton's, None if absent.
        triton_interpret: Triton's interpreter is on (tests without a GPU).
        cpu_name, machine, num_cores: what the host is.
        cpu_features: instruction sets that matter, by torch's names.
        native_error: why C sources cannot be compiled and loaded; None if they can.
        mkldnn: torch was built with oneDNN and it is on.
        bf16_slowdown: time of a bfloat16 matmul over that of float32, None if not measured.
    """

    torch_build: str = "cpu"
    num_devices: int = 0
    device_name: str = ""
    device_arch: str = ""
    num_processors: int = 0
    bytes_per_second: float = 0.0
    aiter_version: str | None = None
    aiter: AiterApi | None = None
    aiter_error: str | None = None
    triton_version: str | None = None
    triton_interpret: bool = False
    cpu_name: str = "unknown CPU"
    machine: str = "x86_64"
    num_cores: int = 1
    cpu_features: frozenset[str] = frozenset()
    native_error: str | None = None
    mkldnn: bool = True
    bf16_slowdown: float | None = None


@dataclass(frozen=True)
class Platform:
    """What operators run on; frozen, hashable, and all that `supports` functions may ask.

    Attributes:
        device: torch device type, "cpu" or "cuda" (ROCm builds say "cuda" too).
        vendor: "cpu", "nvidia" or "amd".
        arch: "gfx942", "sm_90", or the host's machine name.
        name: for people.
        backends: those that can run here, in the order in which `select` tries them.
        unavailable: (backend, reason) of the others.
        fast_bf16: bfloat16 matmul is at least as good a choice as float32 here.
        bf16_reason: how that was decided.
        num_cores: host cores this process may use.
        cpu_features: instruction sets of the host.
        batch_invariant: operators must give a row the same bits in any batch; asked for by who builds a model.
        aiter: what the AITER here offers, None where it cannot run.
        num_devices: accelerators like this one that this process may use; 0 on a CPU.
        num_processors: processors that an accelerator has (NVIDIA: SMs, AMD: compute units); 0 on a CPU.
        bytes_per_second: what an accelerator's memory moves at most; 0 on a CPU.
    """

    device: str
    vendor: str
    arch: str
    name: str
    backends: tuple[str, ...]
    unavailable: tuple[tuple[str, str], ...]
    fast_bf16: bool
    bf16_reason: str
    num_cores: int
    cpu_features: frozenset[str] = frozenset()
    batch_invariant: bool = False
    aiter: AiterApi | None = None
    num_devices: int = 0
    num_processors: int = 0
    bytes_per_second: float = 0.0

    @staticmethod
    def rocm(arch: str, *, release: str = "git", device: str = "cuda") -> Platform:
        """An AMD machine that need not be this one.

        Args:
            arch: "gfx942" (MI300X) or "gfx950" (MI355X).
            release: which AITER it has, "git" or "pypi".
            device: "cuda" as ROCm's torch has it; "cpu" keeps tensors on the host, where Triton has no backend.

        Raises:
            ValueError: an architecture or a release that AITER does not have.
        """
        if arch not in AITER_ARCHES:
            raise ValueError(f"AITER supports {', '.join(AITER_ARCHES)}, not {arch!r}")
        api = known_api(release)
        facts = Facts(
            torch_build="rocm",
            num_devices=1,
            device_name=AITER_ARCHES[arch],
            device_arch=arch,
            aiter_version=api.version,
            aiter=api,
            triton_version="with ROCm's torch",
        )
        platform = platform_from_facts(facts)
        return platform if device == "cuda" else _on_the_host(platform)

    @staticmethod
    def nvidia(arch: str) -> Platform:
        """An NVIDIA machine that need not be this one; `arch` is such as "sm_90"."""
        facts = Facts(
            torch_build="cuda",
            num_devices=1,
            device_name=f"NVIDIA {arch}",
            device_arch=arch,
            triton_version="simulated",
        )
        return platform_from_facts(facts)

    @property
    def float8(self) -> str:
        """The e4m3 format of its instructions: CDNA 3 has one of its own, with 240 as the largest value."""
        return "float8_e4m3fnuz" if self.arch == "gfx942" else "float8_e4m3fn"

    @property
    def local_memory(self) -> int:
        """Bytes of a processor's own memory that one program may have (AMD: LDS, NVIDIA: shared memory)."""
        if self.vendor == "cpu":
            return sys.maxsize
        return _LOCAL_MEMORY.get(self.arch, _LEAST_LOCAL_MEMORY)

    @property
    def preferred_dtype(self) -> str:
        """Whichever of "bfloat16" and "float32" is fast here; `bf16_reason` says why."""
        return "bfloat16" if self.fast_bf16 else "float32"

    def why_not(self, backend: str) -> str | None:
        """The reason why `backend` cannot run here, None if it can."""
        return dict(self.unavailable).get(backend)


# AMD's CDNA 3 and 4 guides; NVIDIA's CUDA C++ programming guide, "Technical specifications per compute capability".
_LOCAL_MEMORY = {"gfx942": 65536, "gfx950": 163840, "sm_80": 166912, "sm_90": 232448, "sm_100": 232448}
_LEAST_LOCAL_MEMORY = 65536
# Processors and bytes a second of the best known card of an architecture, where the card itself was not asked.
_PROCESSORS = {
    "gfx942": (304, 5.3e12),
    "gfx950": (256, 8.0e12),
    "sm_80": (108, 2.0e12),
    "sm_90": (132, 3.35e12),
    "sm_100": (148, 8.0e12),
}
_FEWEST_PROCESSORS = (100, 1.0e12)

# The platforms that `use_platform` put in the place of this machine; the last one is in force.
_in_use: list[Platform] = []


def detect_platform() -> Platform:
    """This machine, probed once per process; inside `use_platform`, that platform."""
    return _in_use[-1] if _in_use else _probe_once()


@contextlib.contextmanager
def use_platform(platform: Platform) -> Iterator[Platform]:
    """Every thread's `detect_platform` answers with `platform` inside: to see or test what another machine would do."""
    _in_use.append(platform)
    try:
        yield platform
    finally:
        _in_use.pop()


@functools.cache
def _probe_once() -> Platform:
    return platform_from_facts(gather_facts())


def _on_the_host(platform: Platform) -> Platform:
    reason = "tensors are on the host, where it has no backend"
    return replace(
        platform,
        device="cpu",
        backends=tuple(name for name in platform.backends if name != "triton"),
        unavailable=(*platform.unavailable, ("triton", reason)),
    )


def platform_from_facts(facts: Facts) -> Platform:
    """Decide from facts alone, so that every decision can be tested anywhere."""
    on_gpu = facts.torch_build in ("cuda", "rocm") and facts.num_devices > 0
    vendor = {"cuda": "nvidia", "rocm": "amd"}[facts.torch_build] if on_gpu else "cpu"
    reasons = {
        "aiter": _why_no_aiter(facts, on_gpu),
        "triton": _why_no_triton(facts, on_gpu),
        "native": "native kernels are for CPUs" if on_gpu else facts.native_error,
        "onednn": "oneDNN is for CPUs" if on_gpu else _why_no_onednn(facts),
        "torch": None,
    }
    fast_bf16, bf16_reason = _judge_bf16(facts, on_gpu)
    num_processors, bytes_per_second = _PROCESSORS.get(facts.device_arch, _FEWEST_PROCESSORS) if on_gpu else (0, 0.0)
    return Platform(
        device="cuda" if on_gpu else "cpu",
        vendor=vendor,
        arch=facts.device_arch if on_gpu else facts.machine,
        name=facts.device_name if on_gpu else facts.cpu_name,
        backends=tuple(name for name in BACKEND_ORDER if reasons[name] is None),
        unavailable=tuple((name, reason) for name in BACKEND_ORDER if (reason := reasons[name]) is not None),
        fast_bf16=fast_bf16,
        bf16_reason=bf16_reason,
        num_cores=facts.num_cores,
        cpu_features=facts.cpu_features,
        aiter=facts.aiter if reasons["aiter"] is None else None,
        num_devices=facts.num_devices if on_gpu else 0,
        num_processors=facts.num_processors or num_processors,
        bytes_per_second=facts.bytes_per_second or bytes_per_second,
    )


def gather_facts() -> Facts:
    """Look at this machine. Imports AITER only where it could run, and times bfloat16 only where the CPU claims it."""
    torch_build = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    num_devices = torch.cuda.device_count() if torch_build != "cpu" else 0
    device = _describe_device(torch_build) if num_devices else _Device()
    aiter_version = installed_version()
    try_aiter = torch_build == "rocm" and device.arch in AITER_ARCHES and aiter_version is not None
    aiter, aiter_error = _try_aiter() if try_aiter else (None, None)
    features = _cpu_features()
    has_bf16 = not num_devices and any(name in features for name in _BF16_FEATURES)
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


def _why_no_aiter(facts: Facts, on_gpu: bool) -> str | None:
    reason = _why_no_aiter_device(facts, on_gpu)
    if reason is not None:
        return f"{reason} ({DISTRIBUTION} {facts.aiter_version} is installed)" if facts.aiter_version else reason
    if facts.aiter_version is None:
        return f"the distribution {DISTRIBUTION} is not installed, see docs/amd.md"
    if facts.aiter is None:
        return f"{DISTRIBUTION} {facts.aiter_version} is installed but cannot be used: {facts.aiter_error}"
    return None


def _why_no_aiter_device(facts: Facts, on_gpu: bool) -> str | None:
    if facts.torch_build != "rocm":
        return f"torch is a {facts.torch_build} build, AITER needs ROCm"
    if not on_gpu:
        return "torch sees no AMD GPU"
    if facts.device_arch not in AITER_ARCHES:
        return f"AITER supports {', '.join(AITER_ARCHES)}, this is {facts.device_arch}"
    return None


def _why_no_triton(facts: Facts, on_gpu: bool) -> str | None:
    if facts.triton_version is None:
        return "triton is not installed"
    if not on_gpu and not facts.triton_interpret:
        return "torch sees no GPU (TRITON_INTERPRET=1 runs kernels in the interpreter, for tests)"
    return None


def _why_no_onednn(facts: Facts) -> str | None:
    return None if facts.mkldnn else "torch was built without oneDNN, or it is off"


def _judge_bf16(facts: Facts, on_gpu: bool) -> tuple[bool, str]:
    if on_gpu:
        old = facts.device_arch.startswith("sm_") and int(facts.device_arch[3:]) < 80
        return not old, f"{facts.device_arch} {'emulates' if old else 'has'} bfloat16 matmul"
    found = [name for name in _BF16_FEATURES if name in facts.cpu_features]
    if not found:
        return False, "the CPU has no bfloat16 instructions"
    if not facts.mkldnn:
        return False, f"the CPU has {found[0]} but {_why_no_onednn(facts)}"
    if facts.bf16_slowdown is None:
        return True, f"the CPU has {found[0]}"
    # Far above 1 means emulation; the margin keeps a busy machine from changing the dtype between two starts.
    fast = facts.bf16_slowdown < 2.0
    return fast, f"the CPU has {found[0]}, and a bfloat16 matmul took {facts.bf16_slowdown:.2f}x the time of float32"


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
    arch = f"sm_{properties.major}{properties.minor}"
    if torch_build == "rocm":
        arch = properties.gcnArchName.split(":")[0]
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
