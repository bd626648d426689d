"""Tuning of latent attention: candidates for decodes over cached latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from atom_kernels.attention.mla.cases import make_problem
from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.attention.triton.configs import DecodeConfig, latent_tuning_key
from atom_kernels.mixers.cases import make_geometry, moved
from atom_kernels.tuned.graph_timing import num_copies
from atom_kernels.tuned.sizes import sizes
from atom_kernels.tuned.tuner import Subject, Tuning

# block_n, programs, num_warps, num_stages, prefetch, parts. One program of three stages of 32 keys is not among them:
# nothing is on the way while it computes.
_DECODES = sizes(
    "32x1x4x4x1x4 32x1x4x4x2x1 32x1x4x4x2x4 32x1x4x5x2x4 32x2x4x3x1x4 64x1x4x3x1x4 64x1x4x3x2x4 64x1x4x3x3x4 "
    "64x1x8x2x1x1 64x1x8x3x2x1 64x1x8x3x2x4"
)


class LatentSubject(Subject):
    """Copies of one problem's caches and queries, enough that none stays in a GPU's cache; seeded.

    Args:
        problem: the layer.
        context: tokens of each request.
        device: where all of it lies.
    """

    def __init__(self, problem: MlaProblem, *, context: int = 1024, device: str = "cuda") -> None:
        self._problem, self._context, self._device = problem, context, device

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"decode": [asdict(DecodeConfig(*config)) for config in _DECODES]}

    def calls(self, part: str, config: Mapping[str, Any], num_rows: int) -> Sequence[Callable[[], torch.Tensor]]:
        from atom_kernels.attention.mla.triton_backend import TritonMla

        problem = self._problem
        kernels = replace(TritonMla(problem).latents, decode=DecodeConfig(**config))
        geometry, num_blocks = make_geometry([(1, self._context)] * num_rows, problem.block_size, scattered=True)
        metadata = kernels.build_metadata(moved(geometry, self._device))
        generator = torch.Generator(self._device).manual_seed(0)

        def random(*shape: int, dtype: str) -> torch.Tensor:
            x = torch.randn(*shape, generator=generator, device=self._device, dtype=torch.float32)
            return x.to(getattr(torch, dtype))

        def attend(cache: torch.Tensor) -> torch.Tensor:
            found = q.new_empty((num_rows, problem.num_heads, problem.kv_lora_rank))
            kernels.attend(q, cache, cache, found, metadata)
            return found

        q = random(num_rows, problem.num_heads, problem.latent_dim, dtype=problem.dtype)
        block = (num_blocks, problem.block_size, 1, problem.latent_dim)
        copies = num_copies(problem.layout.block_bytes * num_blocks, most=8)
        return [partial(attend, random(*block, dtype=problem.kv_cache_dtype)) for _ in range(copies)]


def _problems() -> Mapping[str, MlaProblem]:
    return {"DeepSeek-V2-Lite": make_problem(16, 512, 128, 64, 128, "bfloat16")}


LATENT_ATTENTION_TUNING = Tuning(
    operator="latent_attention", rows=(32,), problems=_problems, key=latent_tuning_key, subject=LatentSubject
)
