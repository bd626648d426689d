"""Penalties on tokens that a request has had. Shapes: V tokens of the vocabulary, L tokens of the request."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work


@dataclass(frozen=True)
class PenaltyProblem:
    """Logits are float32 ``[vocab_size]``."""

    vocab_size: int


def penalize(
    logits_V: torch.Tensor,
    history_L: torch.Tensor,
    num_prompt_tokens: int,
    presence_penalty: float,
    frequency_penalty: float,
    repetition_penalty: float,
) -> None:
    """Change one row of logits in place, by the tokens that stand in `history_L`, prompt first.

    A token of the prompt or of the output has its logit divided by the repetition penalty where it is positive, and
    multiplied where it is negative. Then a token of the output loses the presence penalty once, and the frequency
    penalty as often as it stands there. What is without effect (0, and 1 for repetition) is not computed.

    Keskar et al. 2019, "CTRL", https://arxiv.org/abs/1909.05858, for the repetition penalty.

    Args:
        logits_V: float32.
        history_L: int32.
    """
    if repetition_penalty != 1:
        seen = history_L.long().unique()
        values = logits_V[seen]
        logits_V[seen] = torch.where(values > 0, values / repetition_penalty, values * repetition_penalty)
    output = history_L[num_prompt_tokens:]
    if len(output) and (presence_penalty != 0 or frequency_penalty != 0):
        ids, counts = output.long().unique(return_counts=True)
        logits_V[ids] -= frequency_penalty * counts + presence_penalty


def _make_inputs(problem: PenaltyProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """A row for a request of `num_rows` tokens, half of which are its prompt."""
    logits = torch.randn(problem.vocab_size, generator=generator) * 3
    history = torch.randint(0, problem.vocab_size, (num_rows,), generator=generator).int()
    return {}, (logits, history, num_rows // 2, 0.5, 0.25, 1.3)


PENALIZE = Op(
    name="penalize",
    contract=penalize,
    reference=lambda problem, weights, *inputs: penalize(*inputs),
    schema="(Tensor(a!) logits, Tensor history, int num_prompt_tokens, float presence_penalty, "
    "float frequency_penalty, float repetition_penalty) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(Backend.of("torch", "torch unique, index", penalize),),
    written=(0,),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(PenaltyProblem(size) for size in (1, 7, 1000)),
    examples=lambda: (PenaltyProblem(151936),),
    tolerance=lambda problem: Tolerance(atol=1e-5, rtol=1e-5),
    work=lambda problem, num_rows: Work(num_rows * 12),
)
