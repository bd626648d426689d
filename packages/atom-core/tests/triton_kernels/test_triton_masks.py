"""Masks ban the same tokens by the kernel and on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom_core.worker.sampling.token_masks import ban_by_triton, ban_tokens
from atom_kernels.platform import detect_platform

DEVICE = detect_platform().device


@pytest.mark.parametrize("vocab_size", [1, 33, 5000])
def test_a_token_is_banned_where_its_bit_is_not_set(vocab_size: int) -> None:
    draw = np.random.default_rng(3)
    words = draw.integers(-(2**31), 2**31, (3, -(-vocab_size // 32)), dtype=np.int32)
    words[1] = -1
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(1))
    found = logits.clone().to(DEVICE)
    ban_by_triton(found, torch.from_numpy(words).to(DEVICE))
    expected = logits.clone()
    ban_tokens(expected, [words[0], None, words[2]])
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(expected[1], logits[1])
    for token in range(vocab_size):
        is_allowed = words[0, token // 32] >> (token % 32) & 1
        assert bool(expected[0, token] == float("-inf")) == (not is_allowed)
