"""Sequences whose keys and values lie in pages in no order, and attention over them by torch's own function."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F


@dataclass
class PagedSequences:
    """Rows ``[pages, page_size, heads, dim]``; unused pages, and the end of each last one, are NaN."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(
        cls, lengths: list[int], page_size: int, heads: int, dim: int, dtype: torch.dtype = torch.bfloat16
    ) -> PagedSequences:
        """Random content for sequences of these lengths."""
        counts = [-(-length // page_size) for length in lengths]
        num_pages = sum(counts) + 2
        free = torch.randperm(num_pages).to(torch.int32)
        table = torch.full((len(lengths), max(counts) + 1), num_pages + 7, dtype=torch.int32)
        keys, values = (torch.full((num_pages, page_size, heads, dim), float("nan")) for _ in range(2))
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            table[row, :count], free = free[:count], free[count:]
            for cache in (keys, values):
                rows = torch.full((count * page_size, heads, dim), float("nan"))
                rows[:length] = torch.randn(length, heads, dim)
                cache[table[row, :count].long()] = rows.view(count, page_size, heads, dim)
        return cls(keys.to(dtype), values.to(dtype), table, torch.tensor(lengths, dtype=torch.int32))

    def stored_as(
        self, dtype: torch.dtype, key_scale: torch.Tensor | float = 1.0, value_scale: torch.Tensor | float = 1.0
    ) -> PagedSequences:
        """The same, divided by scales and rounded."""
        keys, values = self.keys.float() / key_scale, self.values.float() / value_scale
        return PagedSequences(keys.to(dtype), values.to(dtype), self.table, self.lengths)

    def x_packed(self) -> torch.Tensor:
        """Keys as ``[pages, heads, dim / x, page_size, x]``."""
        pages, page_size, heads, dim = self.keys.shape
        x = 16 // self.keys.element_size()
        return self.keys.view(pages, page_size, heads, dim // x, x).permute(0, 2, 3, 1, 4).contiguous()

    def transposed(self) -> torch.Tensor:
        """Values as ``[pages, heads, dim, page_size]``."""
        return self.values.permute(0, 2, 3, 1).contiguous()

    def shuffled(self) -> torch.Tensor:
        """Values as ``[pages, heads, page_size / x, dim, x]``."""
        pages, page_size, heads, dim = self.values.shape
        x = 16 // self.values.element_size()
        return self.values.view(pages, page_size // x, x, heads, dim).permute(0, 3, 1, 4, 2).contiguous()

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence, ``[length, heads, dim]`` in float32."""
        length, page_size = int(self.lengths[row]), self.keys.shape[1]
        pages = self.table[row, : -(-length // page_size)].long()
        return tuple(cache[pages].flatten(0, 1)[:length].float() for cache in (self.keys, self.values))

    def attention(self, q: torch.Tensor, starts: list[int], **options) -> torch.Tensor:
        """Causal attention of each sequence's rows of `q`."""
        rows = [self.tokens(row) for row in range(len(starts) - 1)]
        parts = [plain_attention(q[a:b], *rows[i], **options) for i, (a, b) in enumerate(pairwise(starts))]
        return torch.cat(parts).to(q.dtype)


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """``[queries, heads, D]`` in float32; the last query stands at the last key, a window counts the query itself."""
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    mask = (distance >= 0) & ((distance < window) if window else True)
    group = q.shape[1] // k.shape[1]
    q, k, v = (
        part.float().transpose(0, 1) for part in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
    )
    if sinks is not None:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        # A key of length one in a dimension of its own, whose logit is the sink, and whose value is zero.
        column = torch.eye(1).expand(len(q), 1, 1)
        q = torch.cat([q, (sinks.float() / scale)[:, None, None].expand(-1, q.shape[1], 1)], -1)
        k = torch.cat([torch.cat([k, torch.zeros(*k.shape[:2], 1)], -1), F.pad(column, (k.shape[-1], 0))], 1)
        v = torch.cat([v, torch.zeros(len(v), 1, v.shape[-1])], 1)
        mask = F.pad(mask, (0, 1), value=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(0, 1)
