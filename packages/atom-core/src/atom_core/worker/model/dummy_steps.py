"""Steps of no request: to measure, and to compile what others will need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.engine_model import EngineModel
from atom_kernels.protocols import BatchGeometry


def largest_step(config: EngineConfig) -> list[int]:
    """As many tokens as a step may have, in prompts as long as they may be."""
    longest = max(config.model.max_model_len, 2)
    num_reqs, last = divmod(max(config.scheduler.max_num_batched_tokens, 2), longest)
    # A request of one token would be a decode, which comes first.
    return [longest] * num_reqs + [last] * (last > 1)


def run_step(
    config: EngineConfig,
    model: EngineModel,
    lengths: Sequence[int],
    *,
    sees_ahead: bool = False,
    num_logits: int | None = None,
) -> None:
    """New prompts of these lengths, or decodes if all are 1.

    Args:
        sees_ahead: the step is one whose tokens may see what is behind them.
        num_logits: tokens that get logits; None for as many as a step samples.
    """
    num_logits = config.max_num_samples if num_logits is None else num_logits
    geometry = dummy_geometry(lengths, config.cache.block_size, config.device)
    if max(lengths) == 1:
        geometry = replace(geometry, num_decodes=len(lengths))
    if sees_ahead:
        geometry = replace(geometry, sees_until=torch.full_like(geometry.slot_mapping, -1, dtype=torch.int32))
    positions = torch.cat([torch.arange(length, device=config.device) for length in lengths])
    input_ids, geometries = torch.zeros_like(positions), (geometry,) * model.num_groups
    states = model.forward(input_ids, positions, geometries)
    if model.stage.is_last and not config.model.is_encoder:
        model.compute_whole_logits(states.hidden_TD[:num_logits])
    if (draft := model.draft) is not None:
        features_TD = draft.model.features(states.hidden_TD, states.aux)
        draft.guess(draft.forward(input_ids, positions, features_TD, geometries)[: config.scheduler.max_num_seqs])


def encode_largest(config: EngineConfig, model: EngineModel) -> Sequence[torch.Tensor]:
    """What the tower makes of as many of the largest pictures as a step encodes; nothing where there is none."""
    if config.images is None or model.tower is None:
        return ()
    most, unit = config.images.most_tokens, config.images.spec.unit
    rows = math.isqrt(most)
    picture = torch.zeros(rows * unit, most // rows * unit, 3, dtype=torch.uint8, device=config.device)
    return model.tower.encode([picture] * (config.scheduler.max_num_image_tokens // most))


def dummy_geometry(lengths: Sequence[int], block_size: int, device: str) -> BatchGeometry:
    """Prompts of `lengths` that write nothing to the cache, and read its first block."""
    ends = np.cumsum([0, *lengths])

    def numbers(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return BatchGeometry(
        query_start_loc=numbers(ends),
        seq_lens=numbers(lengths),
        block_table=torch.zeros(len(lengths), -(-max(lengths) // block_size), dtype=torch.int32, device=device),
        slot_mapping=torch.full((int(ends[-1]),), -1, dtype=torch.int64, device=device),
        num_reqs=len(lengths),
        num_tokens=int(ends[-1]),
        num_decodes=0,
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
