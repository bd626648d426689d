"""The tables of requests and a step's inputs through Triton, a launch each.

No kernel behind them starts before they have ended: they are launched plainly (see `atom_kernels.triton.support`)."""

from __future__ import annotations

import torch

from atom_kernels.triton.launch import launch

# Tokens, blocks and words that a program takes at a time.
_BLOCK = 256


def write_tables_by_triton(words_W: torch.Tensor, writes_n3: torch.Tensor, values_V: torch.Tensor) -> None:
    """`write_tables`."""
    from atom_kernels.step_inputs.triton_kernels import write_words_kernel

    if len(writes_n3):
        launch(write_words_kernel, (len(writes_n3),), words_W, writes_n3, values_V, BLOCK=_BLOCK)


def build_by_triton(
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
    *sampling_n: torch.Tensor,
    block_size: int,
) -> None:
    """`build_step_inputs`."""
    from atom_kernels.step_inputs.triton_kernels import build_inputs_kernel

    num_rows = rows_8R.shape[1]
    launch(
        build_inputs_kernel, (num_rows, -(-longest // _BLOCK)),
        rows_8R, num_reqs, num_rows, rows_8R.stride(0),
        history_SL, history_SL.stride(0),
        block_tables_GSN, *block_tables_GSN.stride()[:2], num_rejected_S,
        input_ids_T, positions_T, slot_mapping_GT, slot_mapping_GT.stride(0),
        query_start_loc_R, seq_lens_R, block_table_GRN, *block_table_GRN.stride()[:2],
        *sampling_n,
        BLOCK_SIZE=block_size,
        NUM_GROUPS=block_tables_GSN.shape[0],
        BLOCK=_BLOCK,
    )  # fmt: skip
