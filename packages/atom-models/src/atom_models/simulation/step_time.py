"""The time of one step on one rank, part by part: what each operator must do, at the rates that such operators reach.

Operators run one after the other. Each takes the longer of its reads and its products, what it moves of activations,
and the time of its launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom_kernels.mixers.requests import Requests, num_rows
from atom_kernels.protocols import CacheFormat
from atom_models.requirements.rank_work import Matrix, RankWork
from atom_models.simulation.systems import Device, System

PARTS = ("weights", "cache", "products", "activations", "links", "launches")

# Shares of a large copy, or of a large product, that our kernels reach: fitted to gpu-nvidia-h100-80gb-hbm3.json.
_READ_CACHE = 0.9
_READ_PACKED = 0.75  # weights of 4 bits, where they are decoded for products in 16
_MULTIPLY = 0.85
_MULTIPLY_EXPERTS = 0.6
_ATTEND = 0.65
# Inputs and outputs of a product are read and written a second time: by norms, rotations, activations and additions.
_PASSES = 2
_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4
# Kernels of a layer's mixer, and those of a mixture beside its two products: routing, sorting, adding up.
_MIXER_KERNELS: Mapping[str, int] = {
    "paged_attention": 1,
    "latent_attention": 3,
    "sparse_latent_attention": 4,
    "lightning_index": 3,
    "delta_net": 4,
}
_MIXTURE_KERNELS = 3


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by `PARTS`."""

    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def limit(self) -> str:
        """The part that takes longest."""
        return max(PARTS, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class Ranks:
    """How ranks share a model and its requests.

    Attributes:
        tensor: ranks that share each layer.
        data: engines of so many ranks each, among which requests are dealt out.
        stages: pipeline stages of an engine, each of which has as many ranks and a part of the requests at a time.
        spread_experts: experts are whole and spread over all ranks of a stage; engines then step together.
    """

    tensor: int = 1
    data: int = 1
    stages: int = 1
    spread_experts: bool = False

    @property
    def count(self) -> int:
        return self.tensor * self.data * self.stages

    def describe(self) -> str:
        sizes = {"tp": self.tensor, "dp": self.data, "pp": self.stages}
        parts = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "tp"]
        return " x ".join(parts + ["ep"] * self.spread_experts)


def step_time(
    work: RankWork,
    requests: Requests,
    system: System,
    *,
    ranks: Ranks,
    weight_format: str,
    cache: CacheFormat,
) -> StepTime:
    """A step of these requests, each of which samples one token.

    Args:
        work: what one rank does, or all of its stages together.
        requests: requests of one group of tensor-parallel ranks.
        weight_format: as `Matrix.num_bytes` takes it.
    """
    device, num_tokens = system.device, num_rows(requests)
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for matrix, count in work.matrices.items():
        rows = len(requests) if matrix.is_head else num_tokens
        for part, seconds in _matrix_parts(matrix, rows, device, ranks, weight_format):
            parts[part] += count * seconds
    for problem, count in work.mixers.items():
        part, seconds = _mixer_part(problem, requests, device, cache)
        parts[part] += count * seconds
        parts["launches"] += count * _MIXER_KERNELS.get(problem.name, 1) * device.launch_seconds
    parts["launches"] += work.num_mixtures * _MIXTURE_KERNELS * device.launch_seconds
    parts["activations"] += 2 * _LOGIT_BYTES * len(requests) * work.vocab_size / device.read_rate
    parts["links"] = _link_seconds(work, num_tokens, len(requests), system, ranks)
    return StepTime(parts)


def _matrix_parts(
    matrix: Matrix, num_rows: int, device: Device, ranks: Ranks, weight_format: str
) -> Iterator[tuple[str, float]]:
    is_mixture = matrix.num_experts > 1
    num_bytes, rows, touched = matrix.num_bytes(weight_format), num_rows, 1.0
    bits = _bits(num_bytes, matrix.num_numbers)
    if is_mixture:
        # Uniform routing: how many experts some token has chosen.
        owners = ranks.tensor * ranks.data if ranks.spread_experts else 1
        all_rows = num_rows * (ranks.data if ranks.spread_experts else 1)
        touched = matrix.num_experts * (1 - (1 - matrix.top_k / matrix.num_experts) ** all_rows) / owners
        rows = all_rows * matrix.top_k / owners
    read_rate = device.read_rate * (1 if bits >= 8 or device.multiplies_in(bits) else _READ_PACKED)
    product_rate = device.product_rate(bits) * (_MULTIPLY_EXPERTS if is_mixture else _MULTIPLY)
    reading, multiplying = touched * num_bytes / read_rate, 2 * rows * matrix.num_numbers / product_rate
    yield ("weights", reading) if reading >= multiplying else ("products", multiplying)
    yield "activations", _PASSES * _ACTIVATION_BYTES * rows * sum(matrix.shape) / device.read_rate
    yield "launches", device.launch_seconds


def _bits(num_bytes: float, num_numbers: int) -> int:
    """How many a number has, its share of the scales taken off."""
    return next(bits for bits in (4, 8, 16, 32) if num_bytes * 8 < num_numbers * bits * 1.4)


def _mixer_part(problem: Any, requests: Requests, device: Device, cache: CacheFormat) -> tuple[str, float]:
    work = replace(problem, cache=cache).work(requests)
    reading = work.num_bytes / (device.read_rate * _READ_CACHE)
    multiplying = work.flops / (device.product_rate(16) * _ATTEND)
    return ("cache", reading) if reading >= multiplying else ("products", multiplying)


def _link_seconds(work: RankWork, num_tokens: int, num_logits: int, system: System, ranks: Ranks) -> float:
    row = _ACTIVATION_BYTES * work.hidden_size
    num_sums = work.num_sums
    seconds = system.links.stage_seconds(num_tokens * row, ranks.tensor, ranks.stages)
    if ranks.spread_experts and ranks.data > 1:
        # Tokens of all groups go to every rank, and sums of their experts go back.
        everyone, tokens = ranks.tensor * ranks.data, num_tokens * ranks.data
        seconds += 2 * work.num_mixtures * system.links.gather_seconds(tokens * row, everyone)
        num_sums -= work.num_mixtures
    seconds += num_sums * system.links.sum_seconds(num_tokens * row, ranks.tensor)
    return seconds + system.links.gather_seconds(_LOGIT_BYTES * num_logits * work.vocab_size, ranks.tensor)
