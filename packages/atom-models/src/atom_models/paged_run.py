"""Runs a model on batches without an engine: a plain paged cache, and a step over parts of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from atom_kernels.host_threads.waiting import adapt_waiting
from atom_kernels.protocols import BatchGeometry
from atom_models.forward_context import ForwardContext, set_forward_context
from atom_models.model import mixer_layers
from atom_models.vision.seen import SeenRows


@dataclass(frozen=True)
class SequenceStep:
    """New tokens of one sequence, which follow `num_cached` tokens that are in the cache already.

    `slot` is its own among those that layers with a state have; it matters where there are any.

    Attributes:
        positions: int64 ``[3, new tokens]`` of prompts with pictures, ``[new tokens]`` of what follows these; None
            counts tokens.
        seen: what a tower gave for these tokens, by rows among them; None where there is no picture.
        sees_until: int32 ``[new tokens]``, see `BatchGeometry`; None where tokens see nothing behind them.
    """

    token_ids: Sequence[int]
    num_cached: int
    block_ids: Sequence[int]
    slot: int = 0
    positions: torch.Tensor | None = None
    seen: SeenRows | None = None
    sees_until: torch.Tensor | None = None

    @property
    def counted(self) -> torch.Tensor:
        """int64 ``[new tokens]``: positions of a text."""
        return torch.arange(self.num_cached, self.num_cached + len(self.token_ids))


class PagedRun:
    """A model with a cache of its own for each layer: so many blocks, or so many slots of states."""

    def __init__(
        self, model: nn.Module, num_blocks: int, device: torch.device | str = "cpu", *, num_slots: int = 8
    ) -> None:
        self.model = model
        self.device = device
        self._plans = {}
        self._mixers = mixer_layers(model)
        for name, layer in self._mixers.items():
            if layer.plan is None:
                raise ValueError(f"{name} has another host, which owns its cache")
            self._plans[name] = layer.plan
        self._caches = {
            name: plan.layout.allocate(num_slots if plan.problem.keeps.in_slots else num_blocks, device)
            for name, plan in self._plans.items()
        }
        paged = (plan for plan in self._plans.values() if not plan.problem.keeps.in_slots)
        self.block_size = next(paged).layout.block_size

    def step(self, sequences: Sequence[SequenceStep], inputs_embeds: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Hidden states [new tokens, D] of each sequence. Those with one new token must come first.

        Args:
            inputs_embeds: ``[T, D]`` in the place of the embedding: what an earlier stage gave.
        """
        if torch.device(self.device).type == "cpu":
            adapt_waiting()
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        positions, seen = _positions(sequences).to(self.device), _seen(sequences)
        geometry = self._geometry(sequences)
        # Hosts count slots from 1: no slot is 0.
        slots = self._tensor([[sequence.slot + 1] for sequence in sequences], torch.int32)
        in_slots = replace(geometry, block_table=slots)
        metadata: dict[Any, Any] = {}
        for plan in self._plans.values():
            if plan.problem not in metadata:
                metadata[plan.problem] = plan.build_metadata(in_slots if plan.problem.keeps.in_slots else geometry)
        of_layers = {name: metadata[plan.problem] for name, plan in self._plans.items()}
        context = ForwardContext(self._caches, of_layers, self._mixers)
        with torch.inference_mode(), set_forward_context(context):
            given = (self._tensor(token_ids), positions, *(() if inputs_embeds is None else (inputs_embeds,)))
            hidden_states = self.model(*given) if seen is None else self.model(*given, seen=seen)
        if isinstance(hidden_states, tuple):
            hidden_states = hidden_states[0]
        return list(hidden_states.split([len(sequence.token_ids) for sequence in sequences]))

    def _geometry(self, sequences: Sequence[SequenceStep]) -> BatchGeometry:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        totals = [sequence.num_cached + len(sequence.token_ids) for sequence in sequences]
        width = max(len(sequence.block_ids) for sequence in sequences)
        table = [[*sequence.block_ids, *[0] * (width - len(sequence.block_ids))] for sequence in sequences]
        slots = [
            sequence.block_ids[position // self.block_size] * self.block_size + position % self.block_size
            for sequence, total in zip(sequences, totals, strict=True)
            for position in range(sequence.num_cached, total)
        ]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return BatchGeometry(
            query_start_loc=self._tensor(starts, torch.int32),
            seq_lens=self._tensor(totals, torch.int32),
            block_table=self._tensor(table, torch.int32),
            slot_mapping=self._tensor(slots),
            num_reqs=len(sequences),
            num_tokens=starts[-1],
            num_decodes=sum(length == 1 for length in lengths),
            max_query_len=max(lengths),
            max_seq_len=max(totals),
            sees_until=_sees_until(sequences, self.device),
        )

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def _positions(sequences: Sequence[SequenceStep]) -> torch.Tensor:
    """``[T]``, or ``[3, T]`` where a sequence has positions in three directions."""
    found = [sequence.counted if sequence.positions is None else sequence.positions for sequence in sequences]
    if all(each.dim() == 1 for each in found):
        return torch.cat(found)
    return torch.cat([each.expand(3, -1) for each in found], dim=1)


def _sees_until(sequences: Sequence[SequenceStep], device: torch.device | str) -> torch.Tensor | None:
    """``[T]``; None where no token sees any behind it."""
    if all(sequence.sees_until is None for sequence in sequences):
        return None
    nothing = [torch.full((len(sequence.token_ids),), -1, dtype=torch.int32) for sequence in sequences]
    found = [sequence.sees_until for sequence in sequences]
    return torch.cat([b if a is None else a for a, b in zip(found, nothing, strict=True)]).to(device)


def _seen(sequences: Sequence[SequenceStep]) -> SeenRows | None:
    """What was seen, by rows of the step."""
    starts = accumulate((len(sequence.token_ids) for sequence in sequences), initial=0)
    found = [(start, one.seen) for start, one in zip(starts, sequences, strict=False) if one.seen is not None]
    if not found:
        return None
    rows, features = [seen.rows + start for start, seen in found], [seen.features for _, seen in found]
    return SeenRows(torch.cat(rows), torch.cat(features))
