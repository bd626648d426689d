"""Steps of ours as vLLM describes its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def described(geometry: Any) -> Any:
    """vLLM's ``CommonAttentionMetadata`` of a step."""
    return SimpleNamespace(
        num_reqs=geometry.num_reqs,
        num_actual_tokens=geometry.num_tokens,
        max_query_len=geometry.max_query_len,
        max_seq_len=geometry.max_seq_len,
        query_start_loc=geometry.query_start_loc,
        query_start_loc_cpu=geometry.query_start_loc.cpu(),
        seq_lens=geometry.seq_lens,
        block_table_tensor=geometry.block_table,
        slot_mapping=geometry.slot_mapping,
    )
