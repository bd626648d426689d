"""Masks of bits on logits, on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom_core.worker.sampling.token_masks import words_of_masks
from atom_kernels.sampling import BAN_TOKENS, BanProblem
from atom_kernels.select import select


def ban_tokens(logits, masks):
    """As the sampler does."""
    vocab_size = logits.shape[1]
    select(BAN_TOKENS, BanProblem(vocab_size))(logits, words_of_masks(masks, vocab_size, logits.device))


@pytest.mark.parametrize("vocab_size", [1, 7, 32, 77, 1000, 4096])
def test_a_logit_stays_to_the_bit_where_its_token_is_allowed_and_is_minus_infinity_elsewhere(vocab_size):
    source = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(source.normal(size=(5, vocab_size)).astype(np.float32) * 1e30)
    logits[:, 0] = float("-inf")
    masks = source.integers(-(2**31), 2**31, (5, -(-vocab_size // 32)), dtype=np.int32)
    masks[2], masks[3] = 0, -1
    before = logits.clone()
    ban_tokens(logits, [None, *masks[1:]])
    for row in range(5):
        for token_id in range(vocab_size):
            is_allowed = row == 0 or bool(int(masks[row, token_id // 32]) >> (token_id % 32) & 1)
            assert logits[row, token_id] == (before[row, token_id] if is_allowed else float("-inf"))


def test_rows_of_a_larger_tensor_are_changed_in_place():
    logits = torch.zeros(4, 40)
    ban_tokens(logits[1:3], [np.array([1, 0], dtype=np.int32), None])
    assert torch.isneginf(logits).sum(dim=1).tolist() == [0, 39, 0, 0]
