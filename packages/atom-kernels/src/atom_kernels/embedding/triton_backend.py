"""The vocabulary lookup through Triton, as a backend of its operator: one launch, also of a part of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.embedding.contract import EmbeddingProblem, check_ids
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# Elements of a program: of one row, or of several short ones.
_BLOCK = 2048


def _supports(problem: EmbeddingProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS) if problem.is_plain else "for plain tables"


def _bind(problem: EmbeddingProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.embedding.triton_kernels import embedding_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    table, size, options = weights["weight"].contiguous(), problem.embedding_dim, dependent_launch()
    block = min(_BLOCK, power_of_two(size))
    rows, num_blocks = _BLOCK // block, -(-size // block)
    held = (problem.first_id or 0, problem.num_embeddings)

    def run(ids_T: torch.Tensor) -> torch.Tensor:
        check_ids(ids_T)
        ids_T = ids_T.contiguous()
        out, count = table.new_empty((*ids_T.shape, size)), ids_T.numel()
        if count:
            launch(
                embedding_kernel, (-(-count // rows), num_blocks), ids_T, table, out, count, *held,
                SIZE=size, ROWS=rows, BLOCK=block, **options,
            )  # fmt: skip
        return out

    return run


BACKEND = Backend(name="triton", implementation="Triton embedding", supports=_supports, bind=_bind)
