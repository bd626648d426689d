"""The tables of requests and a step's inputs through Triton, a launch each, on the host's shortest way: a step that
waits for the one before waits for these launches too.

No kernel behind them starts before they have ended: they are launched plainly (see `atom_kernels.triton.support`)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom_kernels.triton.launch import QuickLaunch

# Tokens, blocks and words that a program takes at a time.
_BLOCK = 256


def bind_write_tables() -> Callable[..., None]:
    """`write_tables`."""
    from atom_kernels.step_inputs.triton_kernels import write_words_kernel

    launch = QuickLaunch(write_words_kernel, BLOCK=_BLOCK)

    def write_tables(words_W: torch.Tensor, writes_n3: torch.Tensor, values_V: torch.Tensor) -> None:
        if len(writes_n3):
            launch((len(writes_n3), 1, 1), words_W, writes_n3, values_V)

    return write_tables


def bind_build(block_size: int, num_groups: int) -> Callable[..., None]:
    """`build_step_inputs`."""
    from atom_kernels.step_inputs.triton_kernels import build_inputs_kernel

    launch = QuickLaunch(build_inputs_kernel, BLOCK_SIZE=block_size, NUM_GROUPS=num_groups, BLOCK=_BLOCK)

    def build(
        rows_7R: torch.Tensor,
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
        *sampling_n: torch.Tensor,
    ) -> None:
        num_rows = rows_7R.shape[1]
        launch(
            (num_rows, -(-longest // _BLOCK), 1),
            rows_7R, num_reqs, num_rows, rows_7R.stride(0),
            history_SL, history_SL.stride(0),
            block_tables_GSN, *block_tables_GSN.stride()[:2],
            input_ids_T, positions_T, slot_mapping_GT, slot_mapping_GT.stride(0),
            query_start_loc_R, seq_lens_R, block_table_GRN, *block_table_GRN.stride()[:2],
            *sampling_n,
        )  # fmt: skip

    return build
