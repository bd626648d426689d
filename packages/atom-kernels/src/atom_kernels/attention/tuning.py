"""Tuning of attention over pages: candidates for decodes and for chunks of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from atom_kernels.attention.cases import make_problem
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.attention.triton.configs import DecodeConfig, PrefillConfig, tuning_key
from atom_kernels.mixers.cases import make_geometry, moved
from atom_kernels.tuned.graph_timing import num_copies
from atom_kernels.tuned.tuner import Subject, Tuning


def decode_candidates(problem: AttentionProblem) -> list[DecodeConfig]:
    """Tiles of 8 to 32 kB of keys, one or several programs on a multiprocessor."""
    shapes = ((16, 4, 2, 3), (32, 2, 4, 3), (32, 3, 4, 4), (64, 1, 4, 4), (64, 2, 4, 3), (64, 1, 8, 4), (128, 1, 4, 3))
    scale = max(1, 128 // problem.head_dim)
    return [DecodeConfig(n * scale, programs, warps, stages) for n, programs, warps, stages in shapes]


def prefill_candidates(problem: AttentionProblem) -> list[PrefillConfig]:
    """Tiles whose sums fit the registers of as many warps."""
    shapes = ((64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3))
    return [PrefillConfig(*shape) for shape in shapes]


class AttentionSubject(Subject):
    """Copies of one problem's caches and queries, enough that none stays in a GPU's cache; seeded.

    Args:
        problem: the layer.
        context: tokens of each request that decodes.
        prompt: tokens of the prompt.
        device: where all of it lies.
    """

    def __init__(
        self, problem: AttentionProblem, *, context: int = 1024, prompt: int = 4096, device: str = "cuda"
    ) -> None:
        self._problem, self._context, self._prompt = problem, context, prompt
        self._device = device

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {
            "decode": [asdict(config) for config in decode_candidates(self._problem)],
            "prefill": [asdict(config) for config in prefill_candidates(self._problem)],
        }

    def calls(self, part: str, config: Mapping[str, Any], num_rows: int) -> Sequence[Callable[[], torch.Tensor]]:
        from atom_kernels.attention.triton.backend import TritonAttention

        problem = self._problem
        requests = [(1, self._context)] * num_rows if part == "decode" else [(self._prompt, self._prompt)]
        geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=True)
        tile = DecodeConfig(**config) if part == "decode" else PrefillConfig(**config)
        kernels = replace(TritonAttention(problem, problem.layout).kernels, **{part: tile}, hopper=None)
        metadata = kernels.build_metadata(moved(geometry, self._device))
        generator = torch.Generator(self._device).manual_seed(0)

        def random(*shape: int, dtype: str) -> torch.Tensor:
            x = torch.randn(*shape, generator=generator, device=self._device, dtype=torch.float32)
            return x.to(getattr(torch, dtype))

        def attend(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            kernels.attend(q, k_cache, v_cache, out, metadata)
            return out

        q = random(geometry.num_tokens, problem.num_heads, problem.head_dim, dtype=problem.dtype)
        block = (num_blocks, problem.block_size, problem.num_kv_heads, problem.head_dim)
        copies = num_copies(problem.layout.block_bytes * num_blocks, most=4)
        caches = [[random(*block, dtype=problem.kv_cache_dtype) for _ in range(2)] for _ in range(copies)]
        return [partial(attend, q, k_cache, v_cache) for k_cache, v_cache in caches]


def _problems() -> Mapping[str, AttentionProblem]:
    shapes = {
        "Qwen3-0.6B": (16, 8, 128),
        "Qwen3-8B": (32, 8, 128),
        "Qwen3-30B-A3B": (32, 4, 128),
        "gpt-oss-20b": (64, 8, 64),
    }
    plain = {model: make_problem(*shape, "bfloat16") for model, shape in shapes.items()}
    shapes["Qwen2.5-7B"] = (28, 4, 128)
    return plain | {
        f"{model}, cache in fp8": make_problem(*shape, "bfloat16", kv_cache_dtype="float8_e4m3fn")
        for model, shape in shapes.items()
    }


PAGED_ATTENTION_TUNING = Tuning(
    operator="paged_attention", rows=(32,), problems=_problems, key=tuning_key, subject=AttentionSubject
)
