"""Verifying drafts: which of the tokens that were sampled at and after guesses are part of the output. n rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work


@dataclass(frozen=True)
class DraftProblem:
    """`dtype` is of the token ids."""

    dtype: torch.dtype = torch.int64


def verify_drafts(sampled_n: torch.Tensor, drafts_n: torch.Tensor) -> torch.Tensor:
    """Keep of each request the samples that follow what they should, and put -1 in the place of the others.

    A request has a row after each of its drafts but the last, in order, and one more: row i was sampled where draft i
    stands, as if all drafts before it were the output. So the first sample always is, and the next one as long as
    draft and sample are equal. Whatever the drafts, what is kept is what would be sampled one by one; at temperature 0
    this is the greedy rejection sampling of Leviathan et al. (arXiv 2211.17192), at others the acceptance rate is that
    of their method for drafts that are not random.

    Args:
        sampled_n: int64, of the target, each by its own position's random number.
        drafts_n: int64, the draft that stands where each was sampled; -1 in the last row of each request.

    Returns:
        int64 ``[n]``. The rows must be complete: the last one ends a request.
    """
    kept, is_kept = sampled_n.tolist(), True
    for row, (sampled, draft) in enumerate(zip(sampled_n.tolist(), drafts_n.tolist(), strict=True)):
        if not is_kept:
            kept[row] = -1
        is_kept = draft < 0 or (is_kept and sampled == draft)
    return torch.tensor(kept, dtype=torch.int64, device=sampled_n.device)


def verify_by_torch(sampled_n: torch.Tensor, drafts_n: torch.Tensor) -> torch.Tensor:
    """`verify_drafts` on any device, without waiting for it: a row is kept if its request has no miss before it."""
    is_miss_n = ((sampled_n != drafts_n) & (drafts_n >= 0)).long()
    num_misses_n = is_miss_n.cumsum(0) - is_miss_n
    is_first_n = torch.ones_like(drafts_n, dtype=torch.bool)
    is_first_n[1:] = drafts_n[:-1] < 0
    num_before_request_n = torch.where(is_first_n, num_misses_n, 0).cummax(0).values
    return torch.where(num_misses_n == num_before_request_n, sampled_n, -1)


def _make_inputs(problem: DraftProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    """Half of the drafts are right, and a third of the rows end a request."""
    sampled = torch.randint(0, 4, (num_rows,), generator=generator)
    is_right = torch.rand(num_rows, generator=generator) < 0.5
    drafts = torch.where(is_right, sampled, torch.randint(0, 4, (num_rows,), generator=generator))
    drafts[torch.rand(num_rows, generator=generator) < 1 / 3] = -1
    drafts[-1:] = -1
    return {}, (sampled, drafts)


VERIFY_DRAFTS = Op(
    name="verify_drafts",
    contract=verify_drafts,
    reference=lambda problem, weights, *inputs: verify_drafts(*inputs),
    schema="(Tensor sampled, Tensor drafts) -> Tensor",
    fake=lambda problem, sampled, drafts: torch.empty_like(sampled),
    backends=(Backend.of("torch", "torch, running sums of misses", verify_by_torch),),
    make_inputs=_make_inputs,
    parity_problems=lambda: (DraftProblem(),),
    examples=lambda: (DraftProblem(),),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * 3 * 8),
)
