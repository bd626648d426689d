"""Log probabilities of chosen tokens, their ranks, and the best beside them. Shapes: B rows, V vocabulary, N best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work


@dataclass(frozen=True)
class LogprobsProblem:
    """Logits are ``[B, vocab_size]`` of any float dtype."""

    vocab_size: int


class TokenLogprobs(NamedTuple):
    """Log probabilities of one token a row.

    Attributes:
        chosen_B: float32, of the chosen token.
        rank_B: int64, 1 for the most likely: one more than the number of tokens that are more likely.
        top_logprobs_BN, top_ids_BN: float32 and int64, the N most likely tokens in falling order.
    """

    chosen_B: torch.Tensor
    rank_B: torch.Tensor
    top_logprobs_BN: torch.Tensor
    top_ids_BN: torch.Tensor


def token_logprobs(logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int) -> TokenLogprobs:
    """Log probabilities under the softmax of `logits_BV`, in float32; a row depends on no other row.

    Args:
        logits_BV: any float dtype.
        token_ids_B: int64, the chosen tokens.
        num_top: how many of the best tokens to give, 0 to V.
    """
    logprobs_BV = torch.log_softmax(logits_BV.float(), dim=-1)
    chosen_B1 = logprobs_BV.gather(1, token_ids_B.long()[:, None])
    rank_B = (logprobs_BV > chosen_B1).sum(dim=-1) + 1
    top = torch.topk(logprobs_BV, num_top, dim=-1)
    return TokenLogprobs(chosen_B1.squeeze(1), rank_B, top.values, top.indices)


def _make_inputs(problem: LogprobsProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    logits = torch.randn(num_rows, problem.vocab_size, generator=generator) * 3
    token_ids = torch.randint(0, problem.vocab_size, (num_rows,), generator=generator)
    return {}, (logits, token_ids, min(5, problem.vocab_size))


def _fake(
    problem: LogprobsProblem, logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, ...]:
    rows, best = (logits_BV.shape[0],), (logits_BV.shape[0], num_top)
    new = logits_BV.new_empty
    return (
        new(rows, dtype=torch.float32),
        new(rows, dtype=torch.int64),
        new(best, dtype=torch.float32),
        new(best, dtype=torch.int64),
    )


TOKEN_LOGPROBS = Op(
    name="token_logprobs",
    contract=token_logprobs,
    reference=lambda problem, weights, *inputs: token_logprobs(*inputs),
    schema="(Tensor logits, Tensor token_ids, int num_top) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake,
    backends=(Backend.of("torch", "torch log_softmax, topk", token_logprobs),),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(LogprobsProblem(size) for size in (1, 7, 1000)),
    examples=lambda: (LogprobsProblem(151936),),
    tolerance=lambda problem: Tolerance(atol=1e-5, rtol=1e-5),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * 4),
)
