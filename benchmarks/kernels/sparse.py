"""Sparse attention of requests that decode behind 8k tokens: the lightning index, and attention to what it chose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from atom_kernels.attention.index.cases import make_problem as make_index_problem
from atom_kernels.attention.index.problem import IndexProblem
from atom_kernels.attention.sparse.cases import make_problem as make_sparse_problem
from atom_kernels.attention.sparse.problem import SparseMlaProblem
from atom_kernels.mixers import select_mixer
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.attention import BLOCK_SIZE, geometry_on_gpu
from benchmarks.kernels.case import Call, KernelCase, Sides, random
from benchmarks.kernels.plain_attention import plain_chosen, plain_index
from benchmarks.kernels.shapes import SparseHeads

_LENGTH = 8192
# Steps of more rows are prompts.
_MOST_DECODES = 256


def cases(model: str, heads: SparseHeads, rows: tuple[int, ...]) -> Iterator[KernelCase]:
    latent = heads.latent
    dims = (latent.kv_lora_rank, latent.nope_head_dim, latent.rope_head_dim, latent.v_head_dim)
    index = make_index_problem(
        *(heads.index_heads, heads.index_head_dim, latent.rope_head_dim, heads.top_k, "bfloat16"), block_size=BLOCK_SIZE
    )
    sparse = make_sparse_problem(heads.num_heads, *dims, heads.top_k, dtype="bfloat16", block_size=BLOCK_SIZE)
    for count in rows:
        if count <= _MOST_DECODES:
            yield _index_case(model, index, count)
            yield _sparse_case(model, sparse, count)


def _index_case(model: str, problem: IndexProblem, count: int) -> KernelCase:
    work = problem.work([(1, _LENGTH)] * count)

    def build() -> Sides:
        plan = select_mixer(problem)
        geometry, num_blocks = geometry_on_gpu(1, _LENGTH, count)
        metadata = plan.build_metadata(geometry)
        ours: list[Call] = []
        theirs: list[Call] = []
        for _ in range(num_copies(work.num_bytes, most=16)):
            q, k = random(count, problem.num_heads, problem.head_dim), random(count, problem.head_dim)
            head_weights, cache = random(count, problem.num_heads), random(num_blocks, BLOCK_SIZE, problem.head_dim)
            ours.append(partial(plan.forward, (q, k, head_weights), (cache,), metadata))
            theirs.append(partial(plain_index, problem, q, random(count, _LENGTH, problem.head_dim), head_weights))
        return Sides(plan.backend, ours, theirs)

    return KernelCase(problem.name, model, f"decode {count} x 8k", work, build)


def _sparse_case(model: str, problem: SparseMlaProblem, count: int) -> KernelCase:
    work = problem.work([(1, _LENGTH)] * count)

    def build() -> Sides:
        plan = select_mixer(problem)
        geometry, num_blocks = geometry_on_gpu(1, _LENGTH, count)
        metadata = plan.build_metadata(geometry)
        expanded = problem.num_heads * (problem.qk_nope_head_dim + problem.v_head_dim)
        weight = random(expanded, problem.kv_lora_rank, scale=0.02)
        weights = plan.prepare({"kv_b": weight})
        ours: list[Call] = []
        theirs: list[Call] = []
        for _ in range(num_copies(work.num_bytes, most=4)):
            q, kv = random(count, problem.num_heads, problem.query_dim), random(count, problem.latent_dim)
            chosen = torch.rand(count, _LENGTH, device="cuda").topk(problem.top_k).indices.sort().values.int()
            cache = random(num_blocks, BLOCK_SIZE, problem.latent_dim)
            ours.append(partial(plan.forward, (q, kv, chosen), (cache,), metadata, weights=weights))
            latents = random(count, _LENGTH, problem.latent_dim)
            theirs.append(partial(plain_chosen, problem, q, latents, chosen.long(), weight))
        return Sides(plan.backend, ours, theirs)

    return KernelCase(problem.name, model, f"decode {count} x 8k", work, build)
