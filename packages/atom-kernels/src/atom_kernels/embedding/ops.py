"""The vocabulary lookup: contract, reference and operator. T: tokens, V: vocabulary, D: hidden size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec, Work


@dataclass(frozen=True)
class EmbeddingProblem:
    """`first_id` is the id of the table's first row where the vocabulary is split over ranks."""

    num_embeddings: int
    embedding_dim: int
    dtype: torch.dtype
    first_id: int | None = None


def embedding(ids_T: torch.Tensor, table_VD: torch.Tensor, *, first_id: int | None = None) -> torch.Tensor:
    """Rows of `table_VD` for `ids_T` (int32 or int64) -> [T, D].

    With `first_id` the table holds the ids ``first_id .. first_id + V - 1`` and ids outside give zeros, so that the sum
    over ranks is the lookup. Without it an id outside the table is an IndexError.
    """
    if first_id is None:
        return torch.nn.functional.embedding(ids_T, table_VD)
    local = ids_T - first_id
    outside = (local < 0) | (local >= table_VD.shape[0])
    rows = torch.nn.functional.embedding(local.masked_fill(outside, 0), table_VD)
    return rows.masked_fill(outside.unsqueeze(-1), 0)


def _bind(problem: EmbeddingProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    table, first_id = weights["weight"], problem.first_id
    if first_id is None:
        return partial(torch.nn.functional.embedding, weight=table)
    return lambda ids_T: embedding(ids_T, table, first_id=first_id)


def _make_inputs(problem: EmbeddingProblem, num_rows: int, generator: torch.Generator) -> Any:
    table = torch.randn(problem.num_embeddings, problem.embedding_dim, generator=generator).to(problem.dtype)
    # Over twice the table where it is a part of a vocabulary, so that some ids lie outside.
    past_end = problem.num_embeddings * (1 if problem.first_id is None else 2)
    return {"weight": table}, (torch.randint(0, past_end, (num_rows,), generator=generator),)


def _problems() -> tuple[EmbeddingProblem, ...]:
    return tuple(
        EmbeddingProblem(num, dim, dtype, first_id)
        for num, dim in ((1, 1), (37, 20))
        for dtype in FLOATS
        for first_id in (None, 0, 11)
    )


OP = Op(
    name="embedding",
    contract=embedding,
    reference=lambda problem, weights, ids_T: embedding(ids_T, weights["weight"], first_id=problem.first_id),
    schema="(Tensor ids) -> Tensor",
    fake=lambda problem, ids_T: ids_T.new_empty((*ids_T.shape, problem.embedding_dim), dtype=problem.dtype),
    backends=(Backend(name="torch", implementation="torch embedding", bind=_bind),),
    weights=lambda problem: {"weight": WeightSpec((problem.num_embeddings, problem.embedding_dim), problem.dtype)},
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (EmbeddingProblem(49152, 576, torch.bfloat16),),
    tolerance=lambda problem: Tolerance(0.0, 0.0),
    work=lambda problem, num_rows: Work(2 * num_rows * problem.embedding_dim * problem.dtype.itemsize),
)

OPS = (OP,)
