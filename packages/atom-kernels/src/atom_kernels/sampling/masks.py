"""Banning tokens by masks, a bit for each of the vocabulary. Shapes: B rows, V tokens, W words of 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.triton.launch import launch

# Tokens of one program.
_BLOCK = 4096
# What a logit may be at most, for each bit of each byte, the lowest first.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.bool_)
_CEILINGS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))


@dataclass(frozen=True)
class BanProblem:
    """Logits are float32 ``[B, vocab_size]``."""

    vocab_size: int

    @property
    def num_words(self) -> int:
        """Words in the mask of a row: one bit for each token."""
        return -(-self.vocab_size // 32)


def ban_tokens(logits_BV: torch.Tensor, words_BW: torch.Tensor) -> None:
    """Set logits to -inf, in place, where the mask of a row does not allow the token.

    Args:
        logits_BV: float32; what is allowed stays to the bit.
        words_BW: int32; bit ``i % 32`` of word ``i // 32`` allows token i. Bits behind the vocabulary mean nothing.
    """
    ids_V = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    is_banned_BV = (words_BW[:, ids_V // 32] >> (ids_V % 32)) & 1 == 0
    logits_BV.masked_fill_(is_banned_BV, float("-inf"))


def ban_by_ceilings(logits_BV: torch.Tensor, words_BW: torch.Tensor) -> None:
    """`ban_tokens` on a CPU: the least of each logit and what its bit allows, without branches.

    A fill by mask takes 15 times as long. Rows that allow everything are not read.
    """
    words = words_BW.numpy()
    # One for all rows: it stays in the cache, and its memory is touched for the first time once.
    ceilings = np.empty((4 * words.shape[1], 8), dtype=np.float32)
    ceilings_V = torch.from_numpy(ceilings.reshape(-1)[: logits_BV.shape[1]])
    for logits_V, words_W in zip(logits_BV, words, strict=True):
        if (words_W != -1).any():
            np.take(_CEILINGS, words_W.view(np.uint8), axis=0, out=ceilings, mode="clip")  # other modes copy once more
            torch.minimum(logits_V, ceilings_V, out=logits_V)


def ban_by_triton(logits_BV: torch.Tensor, words_BW: torch.Tensor) -> None:
    """`ban_tokens`, in one launch."""
    from atom_kernels.sampling.triton_masks import ban_kernel

    num_rows, vocab_size = logits_BV.shape
    if num_rows:
        grid = (num_rows, -(-vocab_size // _BLOCK))
        rows = (logits_BV, logits_BV.stride(0), words_BW, words_BW.stride(0))
        launch(ban_kernel, grid, *rows, vocab_size, BLOCK=_BLOCK)


def _needs_the_host(problem: BanProblem, platform: Any) -> str | None:
    return None if platform.device == "cpu" else "numpy reads the host's memory alone"


def _make_inputs(problem: BanProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """Every third row allows everything."""
    logits = torch.randn(num_rows, problem.vocab_size, generator=generator)
    words = torch.randint(-(2**31), 2**31, (num_rows, problem.num_words), generator=generator).int()
    words[1::3] = -1
    return {}, (logits, words)


BAN_TOKENS = Op(
    name="ban_tokens",
    contract=ban_tokens,
    reference=lambda problem, weights, *inputs: ban_tokens(*inputs),
    schema="(Tensor(a!) logits, Tensor words) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        Backend.of("triton", "Triton, a bit for a lane", ban_by_triton),
        Backend.of("torch", "numpy table of bytes, torch minimum", ban_by_ceilings, supports=_needs_the_host),
        Backend.of("torch", "torch masked_fill", ban_tokens),
    ),
    written=(0,),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(BanProblem(size) for size in (1, 7, 32, 33, 1000, 5003)),
    examples=lambda: (BanProblem(151936),),
    # Logits stay as they are or become -inf: results are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(4 * num_rows * (2 * problem.vocab_size + problem.num_words)),
)
