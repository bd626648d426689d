"""Where the time of a GPU goes: its kernels by what they do, and the gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

# What kernels do, by parts of their names in lower case, ours and those of torch, cuBLAS and vLLM. The first fits.
PARTS: dict[str, tuple[str, ...]] = {
    "experts": ("expert", "route_kernel", "sort_pairs", "combine_kernel", "moe", "topkgating", "grouped"),
    "delta nets": (
        "gated_delta", "short_conv", "factor_chunks", "scan_chunks", "hopper_scan", "causal_conv1d", "delta_rule",
        "gdn", "solve_tril", "recompute_w_u", "scaled_dot_kkt", "chunk_local_cumsum", "l2norm", "chunk_fwd",
        "chunk_delta",
    ),
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
STEPS_OF_A_WINDOW = 4


class Span(NamedTuple):
    """A kernel's time on the GPU, in microseconds."""

    start: float
    end: float
    name: str


class Window(NamedTuple):
    """A few steps: how long they took in microseconds, and the kernels that began in them."""

    microseconds: float
    spans: Sequence[Span]

    @property
    def idle_share(self) -> float:
        """The share of the time in which no kernel runs."""
        return max(0.0, 1 - sum(busy_microseconds(self.spans).values()) / self.microseconds)


def need_gpu() -> None:
    """Fail where there is none, before a long run whose kernels could not be seen."""
    import torch

    torch.cuda.synchronize()


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


def steady_windows(spans: Sequence[Span], num_steps: int) -> list[Window]:
    """The last half of `num_steps` steps by a few: where host or profiler stop for a moment, one window shows it.

    Steps are told by the rarest of the kernels that run from the first to the last of them. Others are of prompts,
    or of the fewer requests that are left at the end.
    """
    places: dict[str, list[int]] = {}
    for place in range(len(spans) // 2, len(spans)):
        places.setdefault(spans[place].name, []).append(place)
    everywhere = [
        marks for marks in places.values()
        if len(marks) >= num_steps // 4 and marks[-1] - marks[0] > 0.8 * (len(spans) // 2)
    ]  # fmt: skip
    if not everywhere:
        raise ValueError(f"no kernel ran in each of {num_steps} steps; the profiler lost some, or they were fewer")
    marks = min(everywhere, key=len)[-(num_steps // 2) :: STEPS_OF_A_WINDOW]
    return [Window(spans[after].start - spans[first].start, spans[first:after]) for first, after in pairwise(marks)]


def middle_window(windows: Sequence[Window]) -> Window:
    """The one that is neither the most nor the least idle."""
    return sorted(windows, key=lambda window: window.idle_share)[len(windows) // 2]


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


def decode_profile(window: Window, step_ms: float) -> dict[str, float]:
    """Milliseconds of each part of a step that takes `step_ms` unobserved, by the shares in a `window` of steps."""
    parts = {part: step_ms * time / window.microseconds for part, time in busy_microseconds(window.spans).items()}
    return _without_nothing(parts | {IDLE: step_ms * window.idle_share})


def prefill_profile(spans: Sequence[Span], seen_ms: float) -> dict[str, float]:
    """Milliseconds of each part of a prefill that takes its caller `seen_ms` unobserved; idle is what is left."""
    parts = {part: time / 1e3 for part, time in busy_microseconds(spans).items()}
    return _without_nothing(parts | {IDLE: max(0.0, seen_ms - sum(parts.values()))})


def _without_nothing(parts: dict[str, float]) -> dict[str, float]:
    return {part: time for part, time in parts.items() if time > 0}
