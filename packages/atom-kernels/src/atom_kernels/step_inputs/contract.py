"""What a step's inputs are, made where the tables of requests lie.

Shapes: R requests of a batch, T tokens, G groups of layers, S slots of requests, L tokens and N blocks of a slot,
n rows that sample. Tables and buffers are at least as large: a batch takes as much of them as it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TableWritesProblem:
    """`dtype` is of the words of the tables."""

    dtype: torch.dtype = torch.int32


@dataclass(frozen=True)
class StepInputsProblem:
    """Attributes:
    block_size: tokens of a cache block.
    num_groups: G.
    """

    block_size: int
    num_groups: int


def write_tables(words_W: torch.Tensor, writes_n3: torch.Tensor, values_V: torch.Tensor) -> None:
    """Write runs of words into the memory of the tables.

    Args:
        words_W: int32, all tables; written.
        writes_n3: int64, a run each: the word that it begins at, its first value, and how many they are. No two runs
            touch one word.
        values_V: int32.
    """
    for target, source, count in writes_n3.tolist():
        words_W[target : target + count] = values_V[source : source + count]


def build_step_inputs(
    rows_6R: torch.Tensor,
    num_reqs: int,
    longest: int,
    history_SL: torch.Tensor,
    block_tables_GSN: torch.Tensor,
    input_ids_T: torch.Tensor,
    positions_T: torch.Tensor,
    slot_mapping_GT: torch.Tensor,
    query_start_loc_R: torch.Tensor,
    seq_lens_R: torch.Tensor,
    block_table_GRN: torch.Tensor,
    last_tokens_n: torch.Tensor,
    sample_slots_n: torch.Tensor,
    sample_positions_n: torch.Tensor,
    *,
    block_size: int,
) -> None:
    """Fill the buffers of a batch from the tables of its requests.

    A request computes the tokens that stand at ``start .. start + length`` of its history. Rows from `num_reqs` on pad
    the batch: their tokens are 0 at position 0, have no slot in the cache (-1), and their sequences are empty.

    Args:
        rows_6R: int32. Of each request its slot, start, length, first token in the batch, place among the rows that
            sample (-1: does not), and the slot into which it samples.
        num_reqs: requests; the rows behind them are padding.
        longest: the largest length.
        history_SL, block_tables_GSN: int32, tables of requests.
        input_ids_T, positions_T, slot_mapping_GT: int64, written.
        query_start_loc_R: int32 ``[R + 1]``, written.
        seq_lens_R, block_table_GRN: int32, written; a block table as far as its request has tokens.
        last_tokens_n, sample_slots_n, sample_positions_n: int64, written: the last token of each row that samples, the
            slot into which it samples, and the length of its sequence.
        block_size: tokens of a cache block.
    """
    for row, (slot, start, length, first, sample_row, sample_slot) in enumerate(rows_6R.T.tolist()):
        is_real = row < num_reqs
        seq_len = start + length if is_real else 0
        query_start_loc_R[row], query_start_loc_R[row + 1] = first, first + length
        seq_lens_R[row] = seq_len
        if sample_row >= 0:
            last_tokens_n[sample_row] = first + length - 1
            sample_slots_n[sample_row], sample_positions_n[sample_row] = sample_slot, seq_len
        tokens = slice(first, first + length)
        if not is_real:
            input_ids_T[tokens], positions_T[tokens], slot_mapping_GT[:, tokens] = 0, 0, -1
            continue
        positions = torch.arange(start, seq_len, device=rows_6R.device)
        num_blocks = -(-seq_len // block_size)
        blocks_GN = block_tables_GSN[:, slot, :num_blocks]
        input_ids_T[tokens], positions_T[tokens] = history_SL[slot, start:seq_len].long(), positions
        slot_mapping_GT[:, tokens] = blocks_GN[:, positions // block_size].long() * block_size + positions % block_size
        block_table_GRN[:, row, :num_blocks] = blocks_GN
