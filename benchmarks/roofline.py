"""The least time that a step can take: bytes over measured bandwidth, operations over measured rate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BYTES_PER_ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class StepWork:
    """What a step cannot avoid: every weight and every live key and value read once; multiply-adds count twice."""

    num_bytes: float
    num_operations: float


@dataclass(frozen=True)
class MachineRates:
    """Rates measured in this run: bytes read per second, and operations per second of a large matrix product."""

    bytes_per_second: float
    operations_per_second: float

    def better_of(self, other: MachineRates) -> MachineRates:
        """The higher of each rate."""
        return MachineRates(
            max(self.bytes_per_second, other.bytes_per_second),
            max(self.operations_per_second, other.operations_per_second),
        )

    def least_seconds(self, work: StepWork) -> float:
        """The roofline: whichever of memory and arithmetic takes longer, were each used perfectly."""
        return max(work.num_bytes / self.bytes_per_second, work.num_operations / self.operations_per_second)


def step_work(config: Mapping[str, Any], *, num_requests: int, new_tokens: int, context: int, dtype: str) -> StepWork:
    """Work of one step of a dense Llama-shaped model, from its Hugging Face config.

    Args:
        num_requests: requests in the batch; logits are computed for the last token of each.
        new_tokens: tokens that each request computes in this step.
        context: tokens that each request has when the step is done.
    """
    size = BYTES_PER_ELEMENT[dtype]
    layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    linears = layers * (attention + 3 * hidden * config["intermediate_size"])
    head = hidden * config["vocab_size"]
    cached = layers * 2 * kv_heads * head_dim * num_requests * context
    # A token attends to itself and to what is before it, so the mean reach is half a step short of the context.
    reach = context - (new_tokens - 1) / 2
    scores = layers * 4 * heads * head_dim * num_requests * new_tokens * reach
    return StepWork(
        num_bytes=size * (linears + head + cached),
        num_operations=2 * linears * num_requests * new_tokens + 2 * head * num_requests + scores,
    )


def measure_rates(dtype: str, *, megabytes: int = 512, matrix: int = 2048, repeats: int = 7) -> MachineRates:
    """Measure with torch's threads as they are set: a sum over written pages, and a square matrix product."""
    import torch

    # Pages that were never written all map to one page of zeros, which the caches hold.
    pages = torch.empty(megabytes * 2**20 // 4, dtype=torch.float32).fill_(1.0)
    read = _best_seconds(pages.sum, repeats)
    left = torch.randn(matrix, matrix).to(getattr(torch, dtype))
    right = torch.randn(matrix, matrix).to(getattr(torch, dtype))
    product = _best_seconds(lambda: left @ right, repeats)
    return MachineRates(pages.nbytes / read, 2 * matrix**3 / product)


def _best_seconds(action: Callable[[], Any], repeats: int) -> float:
    """The second best of some runs: a bound wants the machine at its best, one lucky clock reading is no proof."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.mean(sorted(times)[:2])
