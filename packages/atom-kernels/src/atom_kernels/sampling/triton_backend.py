"""Drawing tokens by Triton: launches that neither synchronize nor depend on data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.sampling.contract import SamplingTables
from atom_kernels.triton.launch import launch

# Logits of one program.
_CHUNK = 1024
# Chunks of one program where there are this many rows, so that programs do not outweigh their work.
_GROUP, _MANY_ROWS = 4, 32
# Rows of a request that a program looks at together.
_DRAFT_LANES = 32
# Candidates that a chunk may hand on to the search of a threshold.
_REGION = 256


def sample_slots_by_triton(
    logits_BV: torch.Tensor, slots_B: torch.Tensor, positions_B: torch.Tensor, *tables_S: torch.Tensor, filters: bool
) -> torch.Tensor:
    """`sample_slots`: the kernels read the tables and make the random numbers."""
    from atom_kernels.sampling.triton_draw import chunk_kernel, draw_kernel, kept_mass_kernel

    tables = SamplingTables(*tables_S)
    if logits_BV.stride(1) != 1:
        logits_BV = logits_BV.contiguous()
    num_rows, vocab_size = logits_BV.shape
    new = functools.partial(torch.empty, device=logits_BV.device)
    tokens_B = new(num_rows, dtype=torch.int64)
    if not num_rows:
        return tokens_B
    cut = _Cut.of(num_rows, vocab_size)
    chunks, grid, sizes = (num_rows, cut.num_chunks), cut.grid(num_rows), (vocab_size, cut.num_chunks)
    best, best_id = new(chunks, dtype=torch.float32), new(chunks, dtype=torch.int32)
    mass, threshold = new(chunks, dtype=torch.float64), new(num_rows, dtype=torch.int32)
    rows = (logits_BV, logits_BV.stride(0))
    parameters = (slots_B, tables.temperature, tables.top_k, tables.top_p)
    launch(chunk_kernel, grid, *rows, *parameters[:2], best, best_id, mass, *sizes, **cut.constants("CHUNK", "GROUP"))
    if filters:
        _find_thresholds(rows, parameters, best, mass, threshold, cut)
        launch(
            kept_mass_kernel, grid,
            *rows, *parameters, tables.min_p, threshold, best, mass, *sizes,
            **cut.constants("CHUNK", "CHUNKS", "GROUP"),
        )  # fmt: skip
    launch(
        draw_kernel, (num_rows,),
        *rows, *parameters[:2], tables.min_p, threshold, tables.seed, tables.sample_index, positions_B,
        best, best_id, mass, tokens_B, *sizes,
        FILTERS=filters, **cut.constants("CHUNK", "CHUNKS"),
    )  # fmt: skip
    return tokens_B


@dataclass(frozen=True)
class _Cut:
    """How a row is cut into chunks, and how many of them a program takes."""

    vocab_size: int
    chunk: int
    group: int

    @classmethod
    def of(cls, num_rows: int, vocab_size: int) -> _Cut:
        from atom_kernels.powers_of_two import power_of_two

        return cls(vocab_size, min(_CHUNK, power_of_two(vocab_size)), _GROUP if num_rows >= _MANY_ROWS else 1)

    @property
    def num_chunks(self) -> int:
        return -(-self.vocab_size // self.chunk)

    def grid(self, num_rows: int) -> tuple[int, int]:
        return -(-self.num_chunks // self.group), num_rows

    def constants(self, *names: str) -> dict[str, Any]:
        """Those of a kernel by their names, and how it is launched."""
        from atom_kernels.powers_of_two import power_of_two
        from atom_kernels.triton.support import dependent_launch

        known = {"CHUNK": self.chunk, "CHUNKS": power_of_two(self.num_chunks), "GROUP": self.group}
        return {name: known[name] for name in names} | dependent_launch()


def _find_thresholds(
    rows: tuple[torch.Tensor, int],
    parameters: tuple[torch.Tensor, ...],
    best: torch.Tensor,
    mass: torch.Tensor,
    threshold: torch.Tensor,
    cut: _Cut,
) -> None:
    from atom_kernels.sampling.triton_filters import (
        PIVOTS,
        pivot_kernel,
        pivot_sum_kernel,
        search_kernel,
        window_kernel,
    )

    (num_rows, num_chunks), sizes = best.shape, (cut.vocab_size, cut.num_chunks)
    region = min(_REGION, cut.chunk)
    new = functools.partial(torch.empty, device=best.device)
    row_best, total = new(num_rows, dtype=torch.float32), new(num_rows, dtype=torch.float64)
    pivots, sums = (new(num_rows, PIVOTS.value, dtype=torch.float32) for _ in range(2))
    candidates = new(num_rows, num_chunks, region, dtype=torch.float32)
    counts, above = new(num_rows, num_chunks, dtype=torch.int32), new(num_rows, num_chunks, dtype=torch.float64)
    guess = (best, row_best, total, pivots, sums)
    windows = (*rows, *parameters, *guess, candidates, counts, above)
    grid = cut.grid(num_rows)
    launch(
        pivot_kernel, (num_rows,), *parameters, best, mass, row_best, total, pivots, sums, *sizes,
        **cut.constants("CHUNKS"),
    )  # fmt: skip
    launch(
        pivot_sum_kernel, grid, *rows, *parameters, *guess, *sizes,
        LANES=min(512, cut.chunk), **cut.constants("CHUNK", "GROUP"),
    )  # fmt: skip
    launch(window_kernel, grid, *windows, *sizes, REGION=region, **cut.constants("CHUNK", "GROUP"))
    launch(
        search_kernel, (num_rows,), *windows, threshold, *sizes,
        REGION=region, num_warps=16, **cut.constants("CHUNK", "CHUNKS"),
    )  # fmt: skip


def accept_by_triton(
    ids_n: torch.Tensor,
    logits_nV: torch.Tensor,
    slots_n: torch.Tensor,
    positions_n: torch.Tensor,
    history_SL: torch.Tensor,
    num_rejected_S: torch.Tensor,
    *,
    padding_slot: int,
    not_finite: int,
) -> None:
    """`accept_draws`, in one launch."""
    from atom_kernels.sampling.triton_drafts import accept_kernel
    from atom_kernels.triton.support import dependent_launch

    if num_rows := len(ids_n):
        launch(
            accept_kernel, (num_rows,),
            ids_n, logits_nV, *logits_nV.stride(), slots_n, positions_n, history_SL, history_SL.stride(0),
            num_rejected_S, num_rows, padding_slot, not_finite,
            LANES=_DRAFT_LANES, num_warps=1, **dependent_launch(),
        )  # fmt: skip
