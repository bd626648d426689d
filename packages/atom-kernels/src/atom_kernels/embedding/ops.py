"""The vocabulary lookup as an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.embedding import triton_backend
from atom_kernels.embedding.contract import EmbeddingProblem, embedding
from atom_kernels.formats import Integers, Offset, weight_specs
from atom_kernels.operator import Backend, Op, Tolerance, Work


def _bind_packed(problem: EmbeddingProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    held, first_id, dim = problem.weight_format, problem.first_id, problem.embedding_dim
    parts = {name: weights[name] for name in held.parts}

    def run(ids_T: torch.Tensor) -> torch.Tensor:
        local = ids_T if first_id is None else ids_T - first_id
        outside = None if first_id is None else (local < 0) | (local >= problem.num_embeddings)
        local = local if outside is None else local.masked_fill(outside, 0)
        rows = held.dequantize({name: part.index_select(0, local) for name, part in parts.items()}, dim)
        return (rows if outside is None else rows.masked_fill_(outside.unsqueeze(-1), 0)).to(problem.dtype)

    return run


def _supports_packed(problem: EmbeddingProblem, _: Any) -> str | None:
    if problem.is_plain:
        return "for packed tables"
    shared = any(part.rows > 1 for part in problem.weight_format.parts.values())
    return f"{problem.weight_format.name} has scales that rows share" if shared else None


def _reference(problem: EmbeddingProblem, weights: Any, ids_T: torch.Tensor) -> torch.Tensor:
    table = problem.weight_format.dequantize(weights, problem.embedding_dim).to(problem.dtype)
    return embedding(ids_T, table, first_id=problem.first_id)


def _bind(problem: EmbeddingProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    table, first_id = weights["weight"], problem.first_id
    if first_id is None:
        return partial(torch.nn.functional.embedding, weight=table)
    return lambda ids_T: embedding(ids_T, table, first_id=first_id)


def _make_inputs(problem: EmbeddingProblem, num_rows: int, generator: torch.Generator) -> Any:
    table = torch.randn(problem.num_embeddings, problem.embedding_dim, generator=generator).to(problem.dtype)
    # Over twice the table where it is a part of a vocabulary, so that some ids lie outside.
    past_end = problem.num_embeddings * (1 if problem.first_id is None else 2)
    return problem.weight_format.quantize(table), (torch.randint(0, past_end, (num_rows,), generator=generator),)


def _problems() -> tuple[EmbeddingProblem, ...]:
    plain = (
        EmbeddingProblem(num, dim, dtype, first_id)
        for num, dim in ((1, 1), (37, 20))
        for dtype in FLOATS
        for first_id in (None, 0, 11)
    )
    formats = (Integers(8, 32, scale_dtype=torch.float16), Integers(4, 32, Offset.MINIMUM), Integers(8, 16))
    packed = (EmbeddingProblem(37, 64, torch.bfloat16, first_id, one) for one in formats for first_id in (None, 11))
    return (*plain, *packed)


OP = Op(
    name="embedding",
    contract=embedding,
    reference=_reference,
    schema="(Tensor ids) -> Tensor",
    fake=lambda problem, ids_T: ids_T.new_empty((*ids_T.shape, problem.embedding_dim), dtype=problem.dtype),
    backends=(
        triton_backend.BACKEND,
        Backend(name="torch", implementation="torch rows, dequantized", supports=_supports_packed, bind=_bind_packed),
        Backend(
            name="torch",
            implementation="torch embedding",
            supports=lambda problem, _: None if problem.is_plain else "for plain tables",
            bind=_bind,
        ),
    ),
    weights=lambda problem: weight_specs(problem.weight_format, problem.num_embeddings, problem.embedding_dim),
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (EmbeddingProblem(49152, 576, torch.bfloat16),),
    tolerance=lambda problem: Tolerance(0.0, 0.0),
    work=lambda problem, num_rows: Work(2 * num_rows * problem.embedding_dim * problem.dtype.itemsize),
)

OPS = (OP,)
