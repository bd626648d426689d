"""The sampler: logits become token ids, each row by its own request's parameters and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from atom_core.messages import ModelOutput, RequestStepOutput, SchedulerOutput, TokenLogprobs
from atom_core.worker.input_batch import ModelInput
from atom_core.worker.logprobs import rank_tokens
from atom_core.worker.request_states import RequestStates
from atom_kernels.sampling import philox_uniform, sample


@dataclass(frozen=True)
class Sampled:
    """What was drawn: int64 ids ``[n]`` on the device, and the logprobs of those rows that report them."""

    token_ids: torch.Tensor
    logprobs: Mapping[int, TokenLogprobs]


def sample_step(
    step: SchedulerOutput,
    batch: ModelInput,
    logits_nV: torch.Tensor,
    *,
    states: RequestStates,
    masks: Mapping[str, np.ndarray] | None = None,
) -> Sampled:
    """Sample the rows of `batch.sampling`, and append the tokens to the histories.

    Args:
        logits_nV: float32 ``[n, vocab]``, one row for each request that samples; changed in place.
        masks: by request id, the tokens that a grammar allows (see `atom_core.executor.protocol.Masks`).
    """
    sampled = torch.empty(0, dtype=torch.int64, device=states.device)
    logprobs: dict[int, TokenLogprobs] = {}
    if len(batch.sampling):
        slots = batch.slots[batch.sampling]
        positions = batch.starts[batch.sampling] + np.diff(batch.query_starts)[batch.sampling]
        raw = _process(step, batch, logits_nV, states=states, masks=masks, positions=positions)
        sampled = _draw(logits_nV, states, slots, positions)
        states.history[_on(states, slots), _on(states, positions)] = sampled.int()
        for row, (count, logits_V) in raw.items():
            logprobs[row] = rank_tokens(logits_V[None], sampled[row : row + 1], count)[0]
    return Sampled(sampled, logprobs)


def _process(
    step: SchedulerOutput,
    batch: ModelInput,
    logits_nV: torch.Tensor,
    *,
    states: RequestStates,
    masks: Mapping[str, np.ndarray] | None,
    positions: np.ndarray,
) -> dict[int, tuple[int, torch.Tensor]]:
    """Masks, penalties and biases, in place; rows that report logprobs keep a copy of what the model said.

    Masks come first: what bans tokens after them leaves at least one of those that a grammar allows.
    """
    raw: dict[int, tuple[int, torch.Tensor]] = {}
    for row, index in enumerate(batch.sampling.tolist()):
        slot = int(batch.slots[index])
        extras = states.extras[slot]
        logits_V = logits_nV[row]
        if extras is not None and extras.logprobs is not None:
            raw[row] = (extras.logprobs, logits_V.clone())
        if masks and (words := masks.get(step.scheduled[index].request_id)) is not None:
            is_banned = np.unpackbits(~words.view(np.uint8), count=len(logits_V), bitorder="little").view(np.bool_)
            logits_V.masked_fill_(_on(states, is_banned), float("-inf"))
        if extras is not None:
            extras.process(logits_V, states.history[slot, : int(positions[row])])
    return raw


def _draw(logits_nV: torch.Tensor, states: RequestStates, slots: np.ndarray, positions: np.ndarray) -> torch.Tensor:
    temperature = states.temperature[slots]
    if temperature.any():
        uniform = philox_uniform(
            _on(states, states.seed[slots]), _on(states, states.sample_index[slots]), _on(states, positions)
        )
    else:  # greedy rows use no random numbers
        uniform = torch.zeros(len(slots), dtype=torch.float64, device=states.device)
    return sample(
        logits_nV,
        uniform,
        _on(states, temperature),
        _on(states, states.top_k[slots]),
        _on(states, states.top_p[slots]),
        _on(states, states.min_p[slots]),
    )


def report(
    step: SchedulerOutput,
    batch: ModelInput,
    token_ids: list[int],
    *,
    logprobs: Mapping[int, TokenLogprobs],
    prompt_logprobs: Mapping[int, list[TokenLogprobs]],
) -> ModelOutput:
    """The results of a step.

    Args:
        token_ids, logprobs: by row of those that sample.
        prompt_logprobs: by index in the batch.
    """
    row_of = {index: row for row, index in enumerate(batch.sampling.tolist())}
    requests = []
    for index, scheduled in enumerate(step.scheduled):
        row = row_of.get(index)
        entry = None if row is None else logprobs.get(row)
        requests.append(
            RequestStepOutput(
                scheduled.request_id,
                [] if row is None else [token_ids[row]],
                None if entry is None else [entry],
                prompt_logprobs.get(index),
            )
        )
    return ModelOutput(step.step_id, requests)


def _on(states: RequestStates, array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if states.device == "cpu" else tensor.to(states.device, non_blocking=True)
