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
    rows_8R: torch.Tensor,
    num_reqs: int,
    longest: int,
    history_SL: torch.Tensor,
    block_tables_GSN: torch.Tensor,
    num_rejected_S: torch.Tensor,
    input_ids_T: torch.Tensor,
    positions_T: torch.Tensor,
    slot_mapping_GT: torch.Tensor,
    query_start_loc_R: torch.Tensor,
    seq_lens_R: torch.Tensor,
    block_table_GRN: torch.Tensor,
    sampled_tokens_n: torch.Tensor,
    sample_slots_n: torch.Tensor,
    sample_positions_n: torch.Tensor,
    *,
    block_size: int,
) -> None:
    """Fill the buffers of a batch from the tables of its requests.

    A request computes the tokens that stand at ``start .. start + length`` of its history. The host may not have heard
    yet which drafts of the step before were right, and counts all of them: then those that were rejected are taken off
    the start. Rows from `num_reqs` on pad the batch: their tokens are 0 at position 0, have no slot in the cache (-1),
    and their sequences are empty.

    Args:
        rows_8R: int32. Rows of slot, start, length, first token in the batch, the number of tokens that the request
            samples (after its last tokens), the first place of these among all samples, the slot into which it samples,
            and whether (not 0) its start counts drafts that may have been rejected.
        num_reqs: requests; the rows behind them are padding.
        longest: the largest length.
        history_SL, block_tables_GSN: int32, tables of requests.
        num_rejected_S: int32, drafts of each slot that the step before rejected.
        input_ids_T, positions_T, slot_mapping_GT: int64, written.
        query_start_loc_R: int32 ``[R + 1]``, written.
        seq_lens_R, block_table_GRN: int32, written; a block table as far as its request has tokens.
        sampled_tokens_n, sample_slots_n, sample_positions_n: int64, written: of each sample the token that it comes
            after, the slot into which it goes, and its position there.
        block_size: tokens of a cache block.
    """
    for row, numbers in enumerate(rows_8R.T.tolist()):
        slot, start, length, first, num_samples, sample_row, sample_slot, is_unsettled = numbers
        is_real = row < num_reqs
        start -= int(num_rejected_S[slot]) if is_unsettled else 0
        seq_len = start + length if is_real else 0
        query_start_loc_R[row], query_start_loc_R[row + 1] = first, first + length
        seq_lens_R[row] = seq_len
        for behind in range(num_samples):
            place = sample_row + num_samples - 1 - behind
            sampled_tokens_n[place], sample_slots_n[place] = first + length - 1 - behind, sample_slot
            sample_positions_n[place] = seq_len - behind
        tokens = slice(first, first + length)
        if not is_real:
            input_ids_T[tokens], positions_T[tokens], slot_mapping_GT[:, tokens] = 0, 0, -1
            continue
        positions = torch.arange(start, seq_len, device=rows_8R.device)
        num_blocks = -(-seq_len // block_size)
        blocks_GN = block_tables_GSN[:, slot, :num_blocks]
        input_ids_T[tokens], positions_T[tokens] = history_SL[slot, start:seq_len].long(), positions
        slot_mapping_GT[:, tokens] = blocks_GN[:, positions // block_size].long() * block_size + positions % block_size
        block_table_GRN[:, row, :num_blocks] = blocks_GN
