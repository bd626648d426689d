"""A Triton kernel that bans tokens by masks of bits. Shapes: n rows, V tokens of the vocabulary."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ban_kernel(logits_ptr, row_stride, words_ptr, words_stride, vocab_size, BLOCK: tl.constexpr):
    """Programs ``[rows, chunks of BLOCK tokens]``: -inf where a token's bit is 0."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    words = tl.load(words_ptr + row * words_stride + ids // 32, mask=inside)
    is_banned = ((words >> (ids % 32)) & 1) == 0
    tl.store(logits_ptr + row * row_stride + ids, float("-inf"), mask=inside & is_banned)
