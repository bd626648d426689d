"""`Platform`: what operators run on, on this machine or on one that is only thought of."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from atom_kernels.aiter.api import AiterApi, known_api
from atom_kernels.platform.decisions import judge_bf16, speeds, why_not_backends
from atom_kernels.platform.facts import AITER_ARCHES, Facts


@dataclass(frozen=True)
class Platform:
    """What operators run on; frozen, hashable, and all that `supports` functions may ask.

    Attributes:
        device: torch device type, "cpu" or "cuda" (ROCm builds say "cuda" too).
        vendor: "cpu", "nvidia" or "amd".
        arch: "gfx942", "sm_90", or the host's machine name.
        name: what people call it.
        backends: the backends that can run here, in the order in which `select` tries them.
        unavailable: (backend, reason) of the others.
        fast_bf16: bfloat16 matmul is at least as good a choice as float32 here.
        bf16_reason: how that was decided.
        num_cores: host cores this process may use.
        cpu_features: instruction sets of the host.
        batch_invariant: operators must give a row the same bits in any batch; asked for by who builds a model.
        aiter: what the AITER here offers, None where it cannot run.
        num_devices: accelerators like this one that this process may use; 0 on a CPU.
        num_processors: an accelerator's processors (NVIDIA: SMs, AMD: compute units); 0 on a CPU.
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


def platform_from_facts(facts: Facts) -> Platform:
    """Decide from facts alone, so that every decision can be tested anywhere."""
    on_gpu, reasons = facts.on_gpu, why_not_backends(facts)
    fast_bf16, bf16_reason = judge_bf16(facts)
    num_processors, bytes_per_second = speeds(facts)
    return Platform(
        device="cuda" if on_gpu else "cpu",
        vendor={"cuda": "nvidia", "rocm": "amd"}[facts.torch_build] if on_gpu else "cpu",
        arch=facts.device_arch if on_gpu else facts.machine,
        name=facts.device_name if on_gpu else facts.cpu_name,
        backends=tuple(name for name, reason in reasons.items() if reason is None),
        unavailable=tuple((name, reason) for name, reason in reasons.items() if reason is not None),
        fast_bf16=fast_bf16,
        bf16_reason=bf16_reason,
        num_cores=facts.num_cores,
        cpu_features=facts.cpu_features,
        aiter=facts.aiter if reasons["aiter"] is None else None,
        num_devices=facts.num_devices if on_gpu else 0,
        num_processors=num_processors,
        bytes_per_second=bytes_per_second,
    )


def _on_the_host(platform: Platform) -> Platform:
    reason = "tensors are on the host, where it has no backend"
    return replace(
        platform,
        device="cpu",
        backends=tuple(name for name in platform.backends if name != "triton"),
        unavailable=(*platform.unavailable, ("triton", reason)),
    )
