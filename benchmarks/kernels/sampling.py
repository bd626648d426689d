"""Tokens drawn from logits: greedily, at a temperature, and from a filtered distribution."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from atom_kernels.operator import Work
from atom_kernels.sampling import SAMPLE_SLOTS, SamplingTables, SlotSamplingProblem
from atom_kernels.select import select
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.case import Call, KernelCase, Sides, random
from benchmarks.kernels.shapes import ModelShape

# temperature, top_k, top_p
KINDS = {"greedy": (0.0, 0, 1.0), "temperature 0.6": (0.6, 0, 1.0), "top-k 50, top-p 0.9": (0.6, 50, 0.9)}


def cases(model: str, shape: ModelShape, rows: tuple[int, ...]) -> Iterator[KernelCase]:
    for num_rows in rows:
        for kind in KINDS:
            if num_rows <= 256:
                yield _case(model, shape.vocab_size, kind, num_rows)


def _case(model: str, vocab_size: int, kind: str, num_rows: int) -> KernelCase:
    temperature, top_k, top_p = KINDS[kind]
    work = Work(num_rows * vocab_size * 4)

    def build() -> Sides:
        slots = torch.arange(num_rows, device="cuda")

        def column(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((num_rows,), value, dtype=dtype, device="cuda")

        tables = SamplingTables(
            temperature=column(temperature, torch.float32),
            top_k=column(top_k, torch.int32),
            top_p=column(top_p, torch.float32),
            min_p=column(0.0, torch.float32),
            seed=slots.clone(),
            sample_index=torch.zeros_like(slots),
        )
        sample_slots = select(SAMPLE_SLOTS, SlotSamplingProblem(vocab_size, top_k > 0 or top_p < 1)).prepare()
        logits = [random(num_rows, vocab_size, scale=3, dtype=torch.float32) for _ in range(num_copies(work.num_bytes))]
        ours: list[Call] = [lambda x=x: sample_slots(x, slots, slots, *tables) for x in logits]
        return Sides("sample_slots", ours, [lambda x=x: _plain(x, temperature, top_k, top_p) for x in logits])

    return KernelCase("sample", model, f"{kind}, vocabulary {vocab_size}, rows {num_rows}", work, build)


def _plain(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """What is usual in torch: sort, cut, and the exponential trick in place of `multinomial`, which synchronizes."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = (logits / temperature).softmax(dim=-1)
    if top_k > 0 or top_p < 1:
        ordered, ids = probabilities.sort(dim=-1, descending=True)
        ordered[:, top_k:] = 0
        ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered > top_p, 0)
        probabilities = torch.zeros_like(probabilities).scatter_(1, ids, ordered)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)
