"""What facts decide: which backends can run, whether bfloat16 is fast, and how large an accelerator is."""

from __future__ import annotations

from atom_kernels.aiter.sources import DISTRIBUTION
from atom_kernels.operator import BACKEND_ORDER
from atom_kernels.platform.facts import AITER_ARCHES, BF16_FEATURES, Facts

# Processors and bytes a second of the best known card of an architecture, where the card itself was not asked.
_SPEEDS = {
    "gfx942": (304, 5.3e12),
    "gfx950": (256, 8.0e12),
    "sm_80": (108, 2.0e12),
    "sm_90": (132, 3.35e12),
    "sm_100": (148, 8.0e12),
}
_LEAST_SPEEDS = (100, 1.0e12)


def why_not_backends(facts: Facts) -> dict[str, str | None]:
    """For each backend, in the order in which they are tried: why it cannot run, None if it can."""
    reasons = {
        "aiter": _why_no_aiter(facts),
        "triton": _why_no_triton(facts),
        "native": "native kernels are for CPUs" if facts.on_gpu else facts.native_error,
        "onednn": "oneDNN is for CPUs" if facts.on_gpu else _why_no_onednn(facts),
        "torch": None,
    }
    return {name: reasons[name] for name in BACKEND_ORDER}


def _why_no_aiter(facts: Facts) -> str | None:
    reason = _why_no_aiter_device(facts)
    if reason is not None:
        return f"{reason} ({DISTRIBUTION} {facts.aiter_version} is installed)" if facts.aiter_version else reason
    if facts.aiter_version is None:
        return f"the distribution {DISTRIBUTION} is not installed, see docs/amd.md"
    if facts.aiter is None:
        return f"{DISTRIBUTION} {facts.aiter_version} is installed but cannot be used: {facts.aiter_error}"
    return None


def _why_no_aiter_device(facts: Facts) -> str | None:
    if facts.torch_build != "rocm":
        return f"torch is a {facts.torch_build} build, AITER needs ROCm"
    if not facts.on_gpu:
        return "torch sees no AMD GPU"
    if facts.device_arch not in AITER_ARCHES:
        return f"AITER supports {', '.join(AITER_ARCHES)}, this is {facts.device_arch}"
    return None


def _why_no_triton(facts: Facts) -> str | None:
    if facts.triton_version is None:
        return "triton is not installed"
    if not facts.on_gpu and not facts.triton_interpret:
        return "torch sees no GPU (TRITON_INTERPRET=1 runs kernels in the interpreter, for tests)"
    return None


def _why_no_onednn(facts: Facts) -> str | None:
    return None if facts.mkldnn else "torch was built without oneDNN, or it is off"


def judge_bf16(facts: Facts) -> tuple[bool, str]:
    """Whether a bfloat16 matmul is at least as good a choice as float32, and how that was decided."""
    if facts.on_gpu:
        old = facts.device_arch.startswith("sm_") and int(facts.device_arch[3:]) < 80
        return not old, f"{facts.device_arch} {'emulates' if old else 'has'} bfloat16 matmul"
    found = [name for name in BF16_FEATURES if name in facts.cpu_features]
    if not found:
        return False, "the CPU has no bfloat16 instructions"
    if not facts.mkldnn:
        return False, f"the CPU has {found[0]} but {_why_no_onednn(facts)}"
    if facts.bf16_slowdown is None:
        return True, f"the CPU has {found[0]}"
    # Far above 1 means emulation; the margin keeps a busy machine from changing the dtype between two starts.
    fast = facts.bf16_slowdown < 2.0
    return fast, f"the CPU has {found[0]}, and a bfloat16 matmul took {facts.bf16_slowdown:.2f}x the time of float32"


def speeds(facts: Facts) -> tuple[int, float]:
    """Processors of an accelerator and bytes a second of its memory; zeros on a CPU."""
    if not facts.on_gpu:
        return 0, 0.0
    num_processors, bytes_per_second = _SPEEDS.get(facts.device_arch, _LEAST_SPEEDS)
    return facts.num_processors or num_processors, facts.bytes_per_second or bytes_per_second
