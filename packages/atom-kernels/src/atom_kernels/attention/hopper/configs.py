"""Whether Hopper's own kernel attends to prompts, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_kernels.platform import detect_platform
from atom_kernels.powers_of_two import is_power_of_two
from atom_kernels.settings import triton_interpret
from atom_kernels.tuned.store import triton_release

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem

# Gluon is experimental: what it offers is spelled so in these releases.
_RELEASES = ("3.6",)
# Bytes of an H100's 50 MB of L2 cache, for keys and values that all programs read.
_L2_BYTES = 16 << 20


@dataclass(frozen=True)
class HopperConfig:
    """How `hopper_prefill_kernel` is launched.

    Attributes:
        block_n: keys of a tile.
        stages: tiles of keys, and of values, on the way at a time.
        part_registers, load_registers: registers of a thread that multiplies, and of one that loads. 240 and 24 took
            0.96 to 0.99 of the time of 232 and 40 with heads of 128, and 1.03 of it with heads of 64.
        least_tokens: tokens that a step must have: on fewer `prefill_kernel` is about as fast, and starts 30 us sooner.
        least_average: tokens of a prompt, on the average of a step; shorter ones were not measured.
    """

    block_n: int = 128
    stages: int = 2
    part_registers: int = 240
    load_registers: int = 24
    least_tokens: int = 1024
    least_average: int = 128

    def serves(self, num_prompts: int, num_tokens: int) -> bool:
        """Whether it attends to the prompts of a step of so many tokens."""
        return num_prompts > 0 and num_tokens >= max(self.least_tokens, self.least_average * num_prompts)


def hopper_config(problem: AttentionProblem) -> HopperConfig | None:
    """None where `prefill_kernel` attends to all prompts."""
    if detect_platform().arch != "sm_90" or triton_interpret() or triton_release() not in _RELEASES:
        return None
    tiles = problem.head_dim in (64, 128) and heads_of_a_run(problem.group_size) <= 64
    pages = is_power_of_two(problem.block_size) and problem.block_size >= 8
    halves = problem.dtype in ("bfloat16", "float16") and problem.kv_cache_dtype == problem.dtype
    plain = problem.sliding_window is None and problem.soft_cap is None and not problem.batch_invariant
    if not (tiles and pages and halves and plain):
        return None
    if problem.head_dim == 128:
        return HopperConfig()
    # With heads of 64 the softmax takes as long as the products, and there is less to win.
    return HopperConfig(stages=3, part_registers=232, load_registers=40, least_tokens=2048)


def heads_of_a_run(group_size: int) -> int:
    """Query heads of one key head that a tile of query rows has: the largest power of two that divides their number."""
    return group_size & -group_size


def heads_at_a_time(num_kv_heads: int, head_bytes: int) -> int:
    """Key heads whose tiles are taken in turn, a divisor of their number: as many as the L2 cache has room for.

    Args:
        head_bytes: bytes of the keys and values of the longest request in one head.
    """
    most = max(1, _L2_BYTES // max(head_bytes, 1))
    return max(heads for heads in range(1, num_kv_heads + 1) if num_kv_heads % heads == 0 and heads <= most)
