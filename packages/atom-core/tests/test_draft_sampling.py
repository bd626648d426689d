"""Tokens sampled at drafts: by the target's own distribution at each place, and kept up to the first other token."""

from __future__ import annotations

import torch

from atom_core.messages import NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.sampler import Sampler, report
from atom_core.worker.steps.batch import StepRows, build_input

VOCAB_SIZE = 8
# One draw in 10,000 from a chi-square distribution with 7 degrees of freedom is above.
CRITICAL = 29.9


def sampled_runs(logits_SV: torch.Tensor, drafts: tuple[int, ...], num_requests: int, **params) -> list[list[int]]:
    """What each of many requests, which differ in their seeds, gets out of a step with these drafts and logits."""
    tables = HostTables(num_requests, 16, block_size=16, num_groups=1)
    states = RequestStates(num_requests, tables, num_groups=1, vocab_size=VOCAB_SIZE, device="cpu")
    names = [str(number) for number in range(num_requests)]
    new = [NewRequest(name, [1], 1, SamplingParams(seed=number, **params), (), 0) for number, name in enumerate(names)]
    num_samples = len(drafts) + 1
    step = SchedulerOutput(
        0, [ScheduledRequest(name, 0, num_samples, [[0]], num_samples, drafts) for name in names], new, []
    )
    states.update(step)
    batch = build_input(StepRows.of(step, states.slots), tables, 16)
    sampled = Sampler(states).sample_step(step, batch, logits_SV.repeat(num_requests, 1))
    output = report(step, sampled.token_ids.tolist(), logprobs={}, prompt_logprobs={}, embeddings={})
    return [entry.token_ids for entry in output.requests]


def test_draws_at_each_place_follow_its_distribution_exactly():
    temperature, drafts = 0.8, (2, 5)
    logits_SV = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    for place, draft in enumerate(drafts):
        logits_SV[place, draft] = 4.5
    runs = sampled_runs(logits_SV, drafts, 27_000, temperature=temperature)
    for place, logits_V in enumerate(logits_SV):
        drawn = [run[place] for run in runs if len(run) > place]
        assert len(drawn) >= 20_000
        expected = torch.softmax(logits_V.double() / temperature, 0) * len(drawn)
        counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB_SIZE)
        assert float(((counts - expected) ** 2 / expected).sum()) < CRITICAL


def test_draws_at_different_places_are_independent():
    """A place whose random number was that of the one before would give the same token again and again."""
    runs = sampled_runs(torch.zeros(2, VOCAB_SIZE), (4,), 16_000, temperature=1.0)
    after_the_draft = torch.bincount(torch.tensor([run[1] for run in runs if len(run) == 2]), minlength=VOCAB_SIZE)
    expected = after_the_draft.sum() / VOCAB_SIZE
    assert expected > 100
    assert float(((after_the_draft - expected) ** 2 / expected).sum()) < CRITICAL
