"""Paged decode with sinks and windows."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import gluon_decode
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def get_recommended_splits(num_sequences, num_kv_heads, split_kv_blocks=1):
    return gluon_decode.recommended_splits(num_sequences, num_kv_heads, split_kv_blocks)


@emulated
def pa_decode_gluon(
    output: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    softmax_scale: float,
    query_length: int,
    max_context_partition_num: int,
    context_partition_size: int = 256,
    compute_type: torch.dtype = torch.bfloat16,
    query_scale: Tensor = None,
    key_scale: Tensor = None,
    value_scale: Tensor = None,
    exp_sums: Tensor = None,
    max_logits: Tensor = None,
    temporary_output: Tensor = None,
    alibi_slopes: Tensor = None,
    sinks: Tensor = None,
    sliding_window: int = 0,
    ps: bool = True,
) -> None:
    gluon_decode.pa_decode_gluon(
        output,
        query,
        key_cache,
        value_cache,
        context_lengths,
        block_tables,
        softmax_scale,
        query_length,
        max_context_partition_num,
        context_partition_size,
        query_scale,
        key_scale,
        value_scale,
        exp_sums,
        max_logits,
        temporary_output,
        alibi_slopes,
        sinks,
        sliding_window,
        ps,
    )
