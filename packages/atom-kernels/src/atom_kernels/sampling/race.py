"""The race of exponentials: sampling by as many random numbers as there are tokens, as ATOM on AITER does.

The engine draws by `sample`, which needs one number a token and gives the same tokens on every backend. This is the
operator of those who bring their own noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.aiter import sampling as aiter_sampling
from atom_kernels.operator import Backend, Op, Tolerance, Work

# No temperature is below, except 0.
_COLDEST = 1e-5


@dataclass(frozen=True)
class RaceProblem:
    """Attributes:
    vocab_size: V; logits are [B, V] in `dtype`.
    eps: added to each exponential.
    """

    vocab_size: int
    dtype: torch.dtype = torch.float32
    eps: float = 1e-10


def exponential_race(
    logits_BV: torch.Tensor, exponentials_BV: torch.Tensor, temperature_B: torch.Tensor, *, eps: float = 1e-10
) -> torch.Tensor:
    """The token whose ``softmax(logits / temperature) / (exponential + eps)`` is largest -> int64 [B].

    With exponentials of rate 1 each token wins with its probability. Where the temperature is 0 the largest logit wins,
    the lowest id among equals.

    Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", doi:10.1016/j.ipl.2005.11.003.

    Args:
        exponentials_BV: float32, positive.
        temperature_B: float32.
    """
    logits = logits_BV.float()
    probabilities = torch.softmax(logits / temperature_B.clamp(min=_COLDEST)[:, None], dim=-1)
    drawn_B = (probabilities / (exponentials_BV + eps)).argmax(dim=-1)
    return torch.where(temperature_B == 0, logits.argmax(dim=-1), drawn_B)


def _make_inputs(problem: RaceProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    logits = (torch.randn(num_rows, problem.vocab_size, generator=generator) * 3).to(problem.dtype)
    exponentials = torch.empty(num_rows, problem.vocab_size).exponential_(generator=generator)
    temperature = torch.tensor([0.8, 0.0, 1.0, 2.0]).repeat(-(-num_rows // 4))[:num_rows]
    return {}, (logits, exponentials, temperature)


def _parity_problems() -> tuple[RaceProblem, ...]:
    return (
        *(RaceProblem(size, dtype) for size in (4, 500, 1004) for dtype in (torch.float32, torch.bfloat16)),
        RaceProblem(500, eps=0.3),
    )


EXPONENTIAL_RACE = Op(
    name="exponential_race",
    contract=exponential_race,
    reference=lambda problem, weights, *inputs: exponential_race(*inputs, eps=problem.eps),
    schema="(Tensor logits, Tensor exponentials, Tensor temperature) -> Tensor",
    fake=lambda problem, logits, *rest: logits.new_empty(logits.shape[0], dtype=torch.int64),
    backends=(
        aiter_sampling.RACE_BACKEND,
        Backend(
            name="torch",
            implementation="torch softmax, argmax",
            supports=lambda problem, platform: None,
            bind=lambda problem, weights: lambda *inputs: exponential_race(*inputs, eps=problem.eps),
        ),
    ),
    make_inputs=_make_inputs,
    parity_problems=_parity_problems,
    examples=lambda: (RaceProblem(49152),),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * (problem.dtype.itemsize + 4)),
)
