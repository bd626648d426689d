"""`Facts`: everything that the choice of backends looks at."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.aiter.api import AiterApi

# The architectures that AITER has kernels for, and the GPU that names a simulated platform of each.
AITER_ARCHES = {"gfx942": "AMD Instinct MI300X", "gfx950": "AMD Instinct MI355X"}
# Instructions with which a CPU multiplies matrices of bfloat16.
BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16", "arm_bf16", "sve_bf16")


@dataclass(frozen=True)
class Facts:
    """What is known of a machine. Tests pass facts of machines that they do not have.

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

    @property
    def on_gpu(self) -> bool:
        """Whether operators run on an accelerator."""
        return self.torch_build in ("cuda", "rocm") and self.num_devices > 0
