"""Where the time of a GPU goes: its kernels by what they do, and the gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

# What kernels do, by parts of their names in lower case, ours and those of torch, cuBLAS and vLLM. The first fits.
PARTS: dict[str, tuple[str, ...]] = {
    "experts": ("expert", "route_kernel", "sort_pairs", "combine_kernel", "moe", "topkgating", "grouped"),
    "attention": (
        "attention", "attend", "flash", "fmha", "prefill_kernel", "decode_kernel", "merge_kernel", "prologue_kernel",
        "rotary", "rope", "reshape_and_cache", "concat_and_cache", "mla",
    ),
    "sampling": (
        "draw_kernel", "chunk_kernel", "pivot", "window_kernel", "search_kernel", "kept_mass", "philox", "argmax",
        "softmax", "exponential", "sampl", "ban_kernel",
    ),
    "linears": ("linear", "nvjet", "gemm", "gemv", "cutlass", "cublas", "splitk", "matmul"),
    "norms and activations": ("norm", "activation", "silu", "act_and_mul", "triton_poi", "triton_red", "triton_per"),
    "inputs and copies": (
        "mem", "copy", "index", "gather", "scatter", "write_words", "build_inputs", "fill", "elementwise", "cat",
        "slot_mapping", "arange", "embedding",
    ),
}  # fmt: skip
OTHER, IDLE = "other", "idle"


class Span(NamedTuple):
    """A kernel's time on the GPU, in microseconds."""

    start: float
    end: float
    name: str


def kernel_spans(action: Callable[[], None]) -> list[Span]:
    """What runs on the GPU during `action`, by start."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        action()
        torch.cuda.synchronize()
    return sorted(
        Span(event.time_range.start, event.time_range.end, event.name)
        for event in profile.events() or ()
        if str(event.device_type).endswith("CUDA")
    )


def part_of(kernel: str) -> str:
    """What a kernel does, judged by its name."""
    name = kernel.lower()
    return next((part for part, names in PARTS.items() if any(known in name for known in names)), OTHER)


def kernels_of(part: str, spans: Sequence[Span], most: int = 4) -> list[str]:
    """Names of the kernels of a part that run longest in all, as far as they tell something."""
    times: dict[str, float] = {}
    for start, end, name in spans:
        if part_of(name) == part:
            times[name[:80]] = times.get(name[:80], 0.0) + end - start
    return sorted(times, key=lambda name: -times[name])[:most]


def busy_microseconds(spans: Sequence[Span]) -> dict[str, float]:
    """Time of each part; where kernels overlap, the one that began first has it."""
    parts = dict.fromkeys((*PARTS, OTHER), 0.0)
    reached = spans[0].start
    for start, end, name in spans:
        parts[part_of(name)] += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return parts


def decode_profile(spans: Sequence[Span], step_ms: float) -> dict[str, float]:
    """Milliseconds of each part of a step that takes `step_ms` unobserved, by the shares in `spans` of many steps."""
    whole = max(span.end for span in spans) - spans[0].start
    parts = {part: step_ms * time / whole for part, time in busy_microseconds(spans).items()}
    return _without_nothing(parts | {IDLE: step_ms - sum(parts.values())})


def prefill_profile(spans: Sequence[Span], seen_ms: float) -> dict[str, float]:
    """Milliseconds of each part of a prefill that takes its caller `seen_ms` unobserved; idle is what is left."""
    parts = {part: time / 1e3 for part, time in busy_microseconds(spans).items()}
    return _without_nothing(parts | {IDLE: max(0.0, seen_ms - sum(parts.values()))})


def _without_nothing(parts: dict[str, float]) -> dict[str, float]:
    return {part: time for part, time in parts.items() if time > 0}


def busy_share(spans: Sequence[tuple[float, float]]) -> float:
    """Of the time from the first start to the last end, how much lies in any of `spans`, which are sorted."""
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - spans[0][0])
