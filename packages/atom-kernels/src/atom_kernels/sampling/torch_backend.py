"""Drawing tokens by torch operators: no full sort unless the distribution is flat.

Shapes: B rows, V tokens of the vocabulary, N candidates.
"""

from __future__ import annotations

import torch


def sample_by_torch(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """`sample` on any device; weights in float32, sums in float64."""
    logits_BV = logits_BV.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    best_B, greedy_B = logits_BV.max(dim=-1)
    random_B = temperature_B > 0
    if not bool(random_B.any()):
        # max() may give any of several best tokens; argmax gives the first.
        return logits_BV.argmax(dim=-1)
    greedy_B = logits_BV.argmax(dim=-1)
    weights_BV = torch.exp((logits_BV - best_B[:, None]) / torch.where(random_B, temperature_B, 1.0)[:, None].float())
    weights_BV = torch.where(logits_BV == best_B[:, None], 1.0, weights_BV.nan_to_num(nan=0.0))
    threshold_B = _threshold(logits_BV, weights_BV, top_k_B, top_p_B, random_B)
    kept_BV = (logits_BV >= threshold_B[:, None]) & (weights_BV >= min_p_B[:, None])
    cumulative_BV = torch.where(kept_BV, weights_BV, 0.0).double().cumsum(dim=-1)
    target_B1 = cumulative_BV[:, -1:] * uniform_B.double()[:, None]
    drawn_B = torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(-1)
    # Rounding may lift uniform * total to total; the first token that reaches the total is the last with any mass.
    last_B = torch.searchsorted(cumulative_BV, cumulative_BV[:, -1:].contiguous()).squeeze(-1)
    return torch.where(random_B, torch.minimum(drawn_B, last_B), greedy_B)


def _threshold(
    logits_BV: torch.Tensor,
    weights_BV: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    random_B: torch.Tensor,
) -> torch.Tensor:
    """The smallest logit that top-k and then top-p keep, -inf where neither is set."""
    vocab_size = logits_BV.shape[1]
    by_k_B = random_B & (top_k_B > 0) & (top_k_B < vocab_size)
    by_p_B = random_B & (top_p_B < 1)
    threshold_B = torch.full_like(logits_BV[:, 0], float("-inf"))
    limited = (by_k_B | by_p_B).nonzero().squeeze(-1)
    if limited.numel() == 0:
        return threshold_B
    logits, weights, by_k, by_p = logits_BV[limited], weights_BV[limited], by_k_B[limited], by_p_B[limited]
    top_k, top_p = top_k_B[limited].long(), top_p_B[limited].double()
    total = weights.double().sum(dim=-1)
    # All tokens below this weight have together less than 1 - top_p, so none of them is in the nucleus.
    floor = ((1 - top_p) * total / vocab_size).float() * (1 - 1e-5)
    needed = torch.where(by_k, top_k, (weights >= floor[:, None]).sum(dim=-1))
    num_candidates = min(vocab_size, max(1, int(needed.max())))
    best = torch.topk(logits, num_candidates, dim=-1)
    kth = best.values.gather(1, (top_k - 1).clamp(0, num_candidates - 1)[:, None])
    threshold = torch.where(by_k[:, None], kth, float("-inf"))
    kept_total = torch.where(logits >= threshold, weights, 0.0).double().sum(dim=-1)
    cumulative = weights.gather(1, best.indices).double().cumsum(dim=-1)
    reached = torch.searchsorted(cumulative, (kept_total * top_p)[:, None]).clamp(max=num_candidates - 1)
    nucleus = torch.where(by_p[:, None], best.values.gather(1, reached), float("-inf"))
    threshold_B[limited] = torch.maximum(threshold, nucleus).squeeze(-1)
    return threshold_B
