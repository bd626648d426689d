"""Masks ban the same tokens by the kernel as by the contract."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.platform import detect_platform
from atom_kernels.sampling import BAN_TOKENS, BanProblem, ban_tokens
from atom_kernels.sampling.masks import ban_by_triton

DEVICE = detect_platform().device


def test_odd_vocabularies_lose_the_tokens_of_the_contract():
    count = 0
    for case in parity_cases(BAN_TOKENS, detect_platform(), "triton"):
        if not case.label.endswith(("rows=17", "rows=67")):  # these take long in the interpreter
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count == 18


@pytest.mark.parametrize("vocab_size", [1, 33, 5000])
def test_a_token_is_banned_where_its_bit_is_not_set(vocab_size: int) -> None:
    _, (logits, words) = BAN_TOKENS.make_inputs(BanProblem(vocab_size), 3, torch.Generator().manual_seed(1))
    found, expected = logits.clone().to(DEVICE), logits.clone()
    ban_by_triton(found, words.to(DEVICE))
    ban_tokens(expected, words)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(expected[1], logits[1])
    for token in range(vocab_size):
        is_allowed = int(words[0, token // 32]) >> (token % 32) & 1
        assert bool(expected[0, token] == float("-inf")) == (not is_allowed)
