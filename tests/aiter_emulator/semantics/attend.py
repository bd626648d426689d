"""Attention of one sequence in float32, as all of AITER's kernels mean it."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(num_queries: int, num_keys: int, causal: bool, left: int = -1, right: int = -1) -> Tensor:
    """``[queries, keys]``: what each query sees. The last query stands at the last key; -1 is no limit."""
    distance = torch.arange(num_keys) - (torch.arange(num_queries)[:, None] + num_keys - num_queries)
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool)
    if causal:
        right = 0
    if right >= 0:
        seen &= distance <= right
    if left >= 0:
        seen &= distance >= -left
    return seen


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    seen: Tensor,
    *,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention with grouped heads.

    Args:
        q: ``[queries, heads, D]``.
        k: ``[keys, kv_heads, D]``; `v` may have another D.
        seen: ``[queries, keys]``, True where a query sees a key.
        bias: ``[heads, queries, keys]``, added to scaled logits.
        sinks: ``[heads]``, logits of a key without a value.

    Returns:
        float32 ``[queries, heads, Dv]`` and the logarithm of the sums, ``[heads, queries]``. A row that sees nothing is
        zero, and its sum's logarithm -inf.
    """
    group = q.shape[1] // k.shape[1]
    # Keys that no query sees may lie in pages that are no longer the sequence's: their contents must have no effect.
    k, v = (part.float().where(seen.any(0)[:, None, None], 0.0).repeat_interleave(group, dim=1) for part in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)
        logits = torch.cat([logits, column], dim=-1)
    sums = torch.logsumexp(logits, dim=-1)
    blind = torch.isneginf(sums)[..., None]
    weights = torch.where(blind, 0.0, torch.exp(logits - sums[..., None]))
    return torch.einsum("hqk,khd->qhd", weights[..., : k.shape[0]], v), sums


def alibi(slopes: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """``-slope * |query's position - key's|`` as a bias ``[heads, queries, keys]``."""
    positions = torch.arange(num_queries)[:, None] + num_keys - num_queries
    return -slopes.float()[:, None, None] * (positions - torch.arange(num_keys)).abs()
