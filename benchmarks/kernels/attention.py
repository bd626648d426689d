"""Paged attention with its prologue and cache write, and its latent kind: decodes and prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import torch

from atom_kernels.attention.cases import make_problem
from atom_kernels.attention.mla.cases import make_problem as make_latent_problem
from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.attention.mla.tuning import LatentSubject
from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.attention.triton.configs import latent_decode_config
from atom_kernels.mixers import CacheFormat, select_mixer
from atom_kernels.mixers.cache_format import ALL_SCALES, HEAD_SCALES, NO_SCALES, TOKEN_SCALES
from atom_kernels.mixers.cases import make_geometry
from atom_kernels.operator import Work
from atom_kernels.protocols import BatchGeometry
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.case import Call, KernelCase, Sides, random
from benchmarks.kernels.plain_attention import plain_absorbed, plain_attention, plain_latent
from benchmarks.kernels.shapes import ModelShape

# What an engine tells a captured graph, whatever the requests' lengths are.
MAX_MODEL_LEN = 16384
BLOCK_SIZE = 16
# (queries, tokens in all) of equal requests, and how many of them.
DECODES = {"decode 1 x 1k": (1, 1024, 1), "decode 32 x 1k": (1, 1024, 32), "decode 128 x 1k": (1, 1024, 128)}
LONG_DECODES = {"decode 8 x 8k": (1, 8192, 8), "decode 128 x 1 token": (1, 1, 128)}
LATENT_KERNEL = {
    label: (DECODES | LONG_DECODES)[label] for label in ("decode 32 x 1k", "decode 128 x 1k", "decode 8 x 8k")
}
# Over a cache in fp8, and beside it over a plain one.
PACKED = {"decode 32 x 1k": (1, 1024, 32), "decode 128 x 4k": (1, 4096, 128), "prompt of 8k": (8192, 8192, 1)}
PROMPTS = {"prompt of 1k": (1024, 1024, 1), "prompt of 8k": (8192, 8192, 1)}


def cases(model: str, shape: ModelShape) -> Iterator[KernelCase]:
    steps = DECODES | LONG_DECODES | PROMPTS | PACKED
    if shape.latent is not None:
        latent = shape.latent
        dims = (latent.kv_lora_rank, latent.nope_head_dim, latent.rope_head_dim, latent.v_head_dim)
        problem = make_latent_problem(shape.num_heads, *dims, "bfloat16", block_size=BLOCK_SIZE)
        for label, step in steps.items():
            yield _latent_case(model, label, problem, *step)
        for label, (_, length, count) in LATENT_KERNEL.items():
            yield _latent_kernel_case(model, f"attention alone, {label}", problem, length, count)
        return
    for window in (None, shape.sliding_window) if shape.sliding_window else (None,):
        problem = make_problem(
            *(shape.num_heads, shape.num_kv_heads, shape.head_dim, "bfloat16"),
            block_size=BLOCK_SIZE,
            has_sinks=shape.sinks,
            sliding_window=window,
        )
        kind = "" if window is None else f", window {window}"
        for label, step in steps.items():
            yield _paged_case(model, label + kind, problem, shape.qk_norm, *step)
        for scales in ALL_SCALES:
            packed = replace(problem, cache=CacheFormat("float8_e4m3fn", scales))
            named = {NO_SCALES: "fp8", HEAD_SCALES: "fp8 scaled by head", TOKEN_SCALES: "fp8 scaled by token"}[scales]
            for label, step in PACKED.items():
                yield _paged_case(model, f"{label}{kind}, cache in {named}", packed, shape.qk_norm, *step)


def _paged_case(
    model: str, label: str, problem: AttentionProblem, norms: bool, queries: int, length: int, count: int
) -> KernelCase:
    work = paged_work(problem, queries, length, count)

    def build() -> Sides:
        plan = select_mixer(problem)
        geometry, num_blocks = geometry_on_gpu(queries, length, count)
        metadata = plan.build_metadata(geometry)
        head = problem.head_dim
        norm = random(head) if norms else None
        positions = torch.arange(length - queries, length, device="cuda").repeat(count)
        prologue = AttentionPrologue(positions, _rotations(head), False, norm, norm, norm_eps=1e-6)
        given = {name: random(*spec.shape).abs().to(spec.dtype) + 1 for name, spec in problem.weights.items()}
        weights = plan.prepare(given)
        ours: list[Call] = []
        for _ in range(num_copies(work.num_bytes, most=16)):
            heads = (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
            qkv = random(count * queries, sum(heads) * head)
            q, k, v = (part.unflatten(1, (-1, head)) for part in qkv.split([number * head for number in heads], dim=1))
            cache = tuple(
                random(num_blocks, *tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in plan.layout.tensors
            )
            ours.append(
                lambda q=q, k=k, v=v, cache=cache: plan.forward(
                    (q, k, v), cache, metadata, weights=weights, prologue=prologue
                )
            )
        return Sides(plan.backend, ours, _plain(problem, queries, length, count, given.get("sinks")))

    return KernelCase("attention", model, label, work, build)


def _plain(problem: AttentionProblem, queries: int, length: int, count: int, sinks: torch.Tensor | None) -> list[Call]:
    calls: list[Call] = []
    kv_bytes = 4 * count * length * problem.num_kv_heads * problem.head_dim
    for _ in range(num_copies(kv_bytes, most=16)):
        q = random(count, problem.num_heads, queries, problem.head_dim)
        k, v = (random(count, problem.num_kv_heads, length, problem.head_dim) for _ in range(2))
        calls.append(partial(plain_attention, problem, q, k, v, sinks))
    return calls


def _latent_case(model: str, label: str, problem: MlaProblem, queries: int, length: int, count: int) -> KernelCase:
    work = latent_work(problem, queries, length, count)

    def build() -> Sides:
        plan = select_mixer(problem)
        geometry, num_blocks = geometry_on_gpu(queries, length, count)
        metadata = plan.build_metadata(geometry)
        expanded = problem.num_heads * (problem.qk_nope_head_dim + problem.v_head_dim)
        weight = random(expanded, problem.kv_lora_rank, scale=0.02)
        weights = plan.prepare({"kv_b": weight})
        positions = torch.arange(length - queries, length, device="cuda").repeat(count)
        prologue = MlaPrologue(positions, _rotations(problem.qk_rope_head_dim), True, random(problem.kv_lora_rank))
        ours: list[Call] = []
        theirs: list[Call] = []
        for _ in range(num_copies(work.num_bytes, most=16)):
            q = random(count * queries, problem.num_heads, problem.query_dim)
            kv = random(count * queries, problem.latent_dim)
            cache = (random(num_blocks, BLOCK_SIZE, problem.latent_dim),)
            ours.append(
                lambda q=q, kv=kv, cache=cache: plan.forward(
                    (q, kv), cache, metadata, weights=weights, prologue=prologue
                )
            )
            heads = q.unflatten(0, (count, queries)).transpose(1, 2)
            theirs.append(partial(plain_latent, problem, heads, random(count, length, problem.latent_dim), weight))
        return Sides(plan.backend, ours, theirs)

    return KernelCase("latent_attention", model, label, work, build)


def _latent_kernel_case(model: str, label: str, problem: MlaProblem, length: int, count: int) -> KernelCase:
    """From absorbed queries to latents: no prologue, no cache write and no product with a head's own weights."""
    rank, rope = problem.kv_lora_rank, problem.qk_rope_head_dim
    rows = problem.num_heads * (problem.latent_dim + rank)
    work = Work(
        2 * count * (length * problem.latent_dim + rows), 2 * count * length * problem.num_heads * (2 * rank + rope)
    )

    def build() -> Sides:
        config = asdict(latent_decode_config(problem, problem.num_heads))
        ours = LatentSubject(problem, context=length).calls("decode", config, count)
        q = random(count, problem.num_heads, problem.latent_dim)
        theirs = [partial(plain_absorbed, problem, q, random(count, length, problem.latent_dim)) for _ in ours]
        return Sides("triton", ours, theirs)

    return KernelCase("latent_attention", model, label, work, build)


def paged_work(problem: AttentionProblem, queries: int, length: int, count: int) -> Work:
    """Visible keys and values read once, new ones and outputs written; two products for every visible pair."""
    window = problem.sliding_window or length
    seen = min(length, window + queries - 1)
    pairs = sum(min(position + 1, window) for position in range(length - queries, length))
    per_token = problem.layout.block_bytes // problem.block_size
    rows = queries * 2 * 2 * problem.num_heads * problem.head_dim
    return Work(
        count * ((seen + 2 * queries) * per_token + rows), count * 4 * pairs * problem.num_heads * problem.head_dim
    )


def latent_work(problem: MlaProblem, queries: int, length: int, count: int) -> Work:
    """As `paged_work`; decodes multiply latents, longer queries the keys and values made from them, which costs too."""
    rank, rope, value = problem.kv_lora_rank, problem.qk_rope_head_dim, problem.v_head_dim
    pairs = sum(range(length - queries + 1, length + 1))
    expand = 2 * rank * (problem.qk_nope_head_dim + value)
    if queries == 1:
        flops = 2 * pairs * (2 * rank + rope) + queries * expand
    else:
        flops = 2 * pairs * (problem.query_dim + value) + length * expand
    rows = queries * 2 * problem.num_heads * (problem.query_dim + value)
    weights = 2 * problem.num_heads * rank * (problem.qk_nope_head_dim + value)
    cached = 2 * problem.latent_dim * (length + 2 * queries)
    return Work(count * (cached + rows) + weights, count * problem.num_heads * flops)


def geometry_on_gpu(queries: int, length: int, count: int) -> tuple[BatchGeometry, int]:
    """On the GPU, and as an engine gives it: tables as wide as the longest request it admits."""
    geometry, num_blocks = make_geometry([(queries, length)] * count, BLOCK_SIZE)
    width = MAX_MODEL_LEN // BLOCK_SIZE
    table = torch.zeros(count, width, dtype=torch.int32)
    used = -(-length // BLOCK_SIZE)
    table[:, :used] = geometry.block_table[:, :used]
    longest = MAX_MODEL_LEN if queries == 1 else length
    geometry = replace(geometry, block_table=table, max_seq_len=longest)
    return replace(geometry, **{name: value.cuda() for name, value in _tensors(geometry).items()}), num_blocks


def _tensors(geometry: BatchGeometry) -> dict[str, Any]:
    values = {field.name: getattr(geometry, field.name) for field in fields(geometry)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _rotations(dim: int) -> torch.Tensor:
    angles = torch.rand(MAX_MODEL_LEN, dim // 2, device="cuda") * 6.28
    return torch.cat((angles.cos(), angles.sin()), dim=1)
