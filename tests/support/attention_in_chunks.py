"""One request that attends chunk by chunk, over a cache that begins as NaN: reading what was not written shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from atom_kernels.mixers.cases import make_geometry
from atom_kernels.protocols import BatchGeometry


def attend_in_chunks(
    plan: Any, weights: Any, inputs_of: Callable[[slice], Any], *, ends: Sequence[int], scattered: bool
) -> torch.Tensor:
    """What the tokens up to the last of `ends` give; `inputs_of` has the inputs of a chunk, and its prologue."""
    full, num_blocks = make_geometry([(1, ends[-1])], plan.problem.block_size, scattered=scattered)
    kv_cache = tuple(cache.fill_(float("nan")) for cache in plan.layout.allocate(num_blocks))
    blocks, block_size = full.block_table[0].tolist(), plan.problem.block_size
    prepared, outputs = plan.prepare(weights), []
    for start, end in zip([0, *ends], ends, strict=False):
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(start, end)]
        geometry = BatchGeometry(
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            block_table=full.block_table,
            slot_mapping=torch.tensor(slots),
            num_reqs=1,
            num_tokens=end - start,
            num_decodes=int(end - start == 1),
            max_query_len=end - start,
            max_seq_len=end,
        )
        inputs, prologue = inputs_of(slice(start, end))
        metadata = plan.build_metadata(geometry)
        outputs.append(plan.forward(inputs, kv_cache, metadata, weights=prepared, prologue=prologue))
    return torch.cat(outputs)
