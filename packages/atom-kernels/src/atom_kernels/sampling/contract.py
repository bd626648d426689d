"""What sampling computes, sorted and in float64, to be read.

Shapes: B rows, V tokens of the vocabulary, S slots of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from atom_kernels.sampling.philox import philox_uniform


@dataclass(frozen=True)
class SlotSamplingProblem:
    """Attributes:
    vocab_size: V; logits are float32 [B, V].
    filters: False promises that no row uses top-k, top-p or min-p, whose tables are then not read.
    """

    vocab_size: int
    filters: bool


class SamplingTables(NamedTuple):
    """Parameters of requests, a row ("slot") each: tensors ``[S]`` on the device of the logits.

    Attributes:
        temperature: float32, 0 for greedy.
        top_k: int32, 0 or less or V or more for all.
        top_p: float32, 1 for all.
        min_p: float32, 0 for all.
        seed: int64, the key of the random numbers.
        sample_index: int64, which of a request's ``n`` samples.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    sample_index: torch.Tensor


def sample(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row; a row's token depends on nothing but that row.

    Where the temperature is 0 the best token wins, the lowest id among equals. Elsewhere the distribution is
    filtered, each step on what the one before kept: temperature, top-k, top-p, min-p; what ties with a threshold is
    kept. The token is the first, in the order of the vocabulary, at which the cumulative probability exceeds the row's
    uniform number. NaN counts as -inf.

    Args:
        logits_BV: float32.
        uniform_B: float64 in [0, 1), from `philox_uniform`.
        temperature_B: float32, 0 for greedy.
        top_k_B: int64, 0 or less or V or more for all.
        top_p_B: float32, 1 for all.
        min_p_B: float32, the least probability relative to the best token's, 0 for all.

    Returns:
        int64 ``[B]``.
    """
    rows = zip(
        logits_BV.float(),
        uniform_B.tolist(),
        temperature_B.tolist(),
        top_k_B.tolist(),
        top_p_B.tolist(),
        min_p_B.tolist(),
        strict=True,
    )
    return torch.tensor([_sample_row(*row) for row in rows], dtype=torch.int64, device=logits_BV.device)


def sample_slots(
    logits_BV: torch.Tensor,
    slots_B: torch.Tensor,
    positions_B: torch.Tensor,
    *tables_S: torch.Tensor,
    filters: bool,
    draw: Callable[..., torch.Tensor] = sample,
) -> torch.Tensor:
    """`sample` with the parameters of each row's slot and the `philox_uniform` number of its position.

    On a GPU a backend neither synchronizes nor looks at values on the host, so that it can be captured in a graph.

    Args:
        logits_BV: float32.
        slots_B: integers, the row of the tables for each row of logits.
        positions_B: integers, the position of the token to draw.
        tables_S: the fields of `SamplingTables`, in their order.
        filters: as in `SlotSamplingProblem`.
        draw: what a backend has in the place of `sample`.

    Returns:
        int64 ``[B]``.
    """
    tables, slots_B = SamplingTables(*tables_S), slots_B.long()
    uniform_B = philox_uniform(tables.seed[slots_B], tables.sample_index[slots_B], positions_B.long())
    temperature_B = tables.temperature[slots_B]
    if filters:
        top_k_B, top_p_B, min_p_B = (table[slots_B] for table in (tables.top_k, tables.top_p, tables.min_p))
    else:
        top_k_B, top_p_B = torch.zeros_like(slots_B), torch.ones_like(temperature_B)
        min_p_B = torch.zeros_like(temperature_B)
    return draw(logits_BV, uniform_B, temperature_B, top_k_B.long(), top_p_B, min_p_B)


def _sample_row(
    logits_V: torch.Tensor, uniform: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> int:
    logits_V = logits_V.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    if temperature <= 0:
        return int(logits_V.argmax())
    weights_V = row_weights(logits_V, temperature)
    kept_V = torch.ones_like(logits_V, dtype=torch.bool)
    if 0 < top_k < logits_V.numel():
        # Everything as good as the k-th best is kept, so ties may keep more than k.
        kept_V &= logits_V >= logits_V.sort(descending=True).values[top_k - 1]
    if top_p < 1:
        # A token is kept while the mass of strictly better ones, among those kept so far, is short of top_p.
        order = logits_V.masked_fill(~kept_V, float("-inf")).sort(descending=True)
        cumulative = (weights_V * kept_V)[order.indices].cumsum(0)
        reached = torch.searchsorted(cumulative, cumulative[-1] * top_p).clamp(max=logits_V.numel() - 1)
        kept_V &= logits_V >= order.values[reached]
    if min_p > 0:
        kept_V &= weights_V >= min_p * weights_V.max()
    cumulative = (weights_V * kept_V).cumsum(0)
    drawn = int(torch.searchsorted(cumulative, cumulative[-1:] * uniform, right=True))
    # Rounding may lift uniform * total to total; the last token that has any mass is meant.
    return min(drawn, int((weights_V * kept_V > 0).nonzero()[-1]))


def row_weights(logits_V: torch.Tensor, temperature: float) -> torch.Tensor:
    """Unnormalized probabilities in float64, the best token's being 1; equals of an infinite best share it."""
    best = logits_V.max()
    weights = torch.exp((logits_V.double() - best.double()) / temperature)
    return torch.where(logits_V == best, 1.0, weights.nan_to_num(nan=0.0))
