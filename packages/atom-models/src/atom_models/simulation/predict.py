"""A model on some ranks of a system: steps, tokens a second, whether it fits, and where more ranks gain little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from atom_kernels.protocols import CacheFormat
from atom_models.quantization import AS_STORED
from atom_models.requirements.placement import MEMORY_UTILIZATION
from atom_models.requirements.rank_work import Matrix, RankWork
from atom_models.requirements.requirements import ModelRequirements
from atom_models.simulation.step_time import Ranks, StepTime, step_time
from atom_models.simulation.systems import System

# A doubling of ranks that gains less is not worth them.
LEAST_GAIN = 0.1


@dataclass(frozen=True)
class Prediction:
    """A model on ranks of a system, with so many requests at once.

    Attributes:
        batch_size: requests of all engines together.
        decode: a step in which each request gets one token; with stages, the way of a token through all of them.
        prompts: a step that computes a prompt and samples one token, by its length.
        weight_bytes: bytes of weights on each rank.
        num_requests: how many of this context fit at once, on all engines together; 0 where weights do not fit.
    """

    ranks: Ranks
    batch_size: int
    decode: StepTime
    prompts: Mapping[int, StepTime]
    weight_bytes: float
    num_requests: int

    @property
    def fits(self) -> bool:
        return self.num_requests >= self.batch_size

    @property
    def user_tokens(self) -> float:
        """Tokens a second of one request."""
        return 1 / self.decode.seconds

    @property
    def device_tokens(self) -> float:
        """Tokens a second of each device."""
        return self.batch_size / self.decode.seconds / self.ranks.count

    def served_seconds(self, prompt: int, output: int) -> float:
        """Seconds between tokens of a request, where each one that ends is followed by another's prompt."""
        each_engine = self.batch_size / self.ranks.data
        return self.decode.seconds + each_engine * self.prompts[prompt].seconds / output


@dataclass(frozen=True)
class Scaling:
    """Predictions of one batch size over more and more ranks.

    Attributes:
        stops_at: the number of ranks after which a doubling gains less than `LEAST_GAIN`; None where each gains more.
        limit: what a step waits for most on the last ranks.
    """

    batch_size: int
    stops_at: int | None
    limit: str


def predict(
    needs: ModelRequirements,
    system: System,
    ranks: Ranks,
    *,
    batch_size: int,
    context: int,
    weight_format: str,
    cache: CacheFormat,
    prompts: Sequence[int] = (1024, 8192),
) -> Prediction | None:
    """The model on these ranks; None where they cannot share it evenly.

    Args:
        batch_size: requests of all engines together, dealt out evenly.
        context: tokens of each request in a decode, the new one included.
        weight_format: one of the model's `weight_bytes`.
    """
    # A token takes the time of all stages, and a device has the memory of one.
    share, whole = needs.on_rank(ranks.tensor), needs.on_rank(1)
    stage = share if ranks.stages == 1 else needs.in_stages(ranks.tensor, ranks.stages)
    if share is None or whole is None or stage is None:
        return None
    held = AS_STORED if weight_format == needs.published_format else weight_format
    work, weight_bytes = share.work, float(stage.weight_bytes[weight_format])
    if ranks.spread_experts and work.num_mixtures:
        work = _with_whole_experts(work, whole.work)
        # Whole experts on some ranks, in place of a part of each on every rank of one engine.
        apart = _expert_bytes(work, held) / (ranks.tensor * ranks.data) / _expert_bytes(share.work, held)
        weight_bytes -= _expert_bytes(stage.work, held) * (1 - apart)

    def step(requests: list[tuple[int, int]]) -> StepTime:
        return step_time(work, requests, system, ranks=ranks, weight_format=held, cache=cache)

    accelerator = system.device.accelerator
    room = int(accelerator.memory_bytes * MEMORY_UTILIZATION - weight_bytes)
    room -= stage.snapshot_bytes(room)
    each = stage.kv_bytes(context, cache, accelerator.platform)
    return Prediction(
        ranks,
        batch_size,
        decode=step([(1, context)] * -(-batch_size // (ranks.data * ranks.stages))),
        prompts={length: step([(length, length)]) for length in prompts},
        weight_bytes=weight_bytes,
        num_requests=max(0, room // each) * ranks.data,
    )


def scaling_of(predictions: Sequence[Prediction]) -> Scaling:
    """Where more ranks gain little.

    Args:
        predictions: the predictions of one batch size that fit, each on twice as many ranks as the one before.
    """
    stops_at = None
    for few, many in pairwise(predictions):
        if few.decode.seconds < (1 + LEAST_GAIN) * many.decode.seconds:
            stops_at = few.ranks.count
            break
    return Scaling(predictions[0].batch_size, stops_at, predictions[-1].decode.limit)


def _with_whole_experts(work: RankWork, whole: RankWork) -> RankWork:
    matrices = {matrix: count for matrix, count in work.matrices.items() if not _of_experts(matrix)}
    matrices |= {matrix: count for matrix, count in whole.matrices.items() if _of_experts(matrix)}
    return replace(work, matrices=matrices)


def _expert_bytes(work: RankWork, weight_format: str) -> float:
    found = ((matrix, count) for matrix, count in work.matrices.items() if _of_experts(matrix))
    return sum(count * matrix.num_experts * matrix.num_bytes(weight_format) for matrix, count in found)


def _of_experts(matrix: Matrix) -> bool:
    return matrix.num_experts > 1
