"""The rule by which a token is drawn, sorted and in float64, to be read.

Shapes: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch


def sample_reference(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """The contract of `sample`, row by row."""
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
