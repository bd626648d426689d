"""Attention of encoders as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.encoder.cases import make_problem, make_step
from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
from atom_kernels.attention.encoder.reference import encoder_attention
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests
from atom_kernels.operator import Tolerance

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

_TOLERANCES = {"float32": Tolerance(2e-5, 2e-5), "bfloat16": Tolerance(2e-2, 2e-2)}
# Heads, their size, the window, and whether tokens see none behind themselves.
_EXAMPLES: dict[str, tuple[int, int, int | None, bool]] = {
    "BERT-base, bge-base": (12, 64, None, False),
    "XLM-R-large, bge-m3": (16, 64, None, False),
    "ModernBERT-base, local layers": (12, 64, 64, False),
    "CLIP-ViT-L, texts": (12, 64, None, True),
}
_PARITY_SHAPES = ((4, 64, None), (3, 16, 5), (2, 40, 64), (1, 128, 1), (1, 72, None), (1, 80, 20))
_CAUSAL_SHAPES = ((2, 64, None), (1, 40, 20))
# A text of one token first, then odd lengths around the borders of windows and of runs of queries.
_LENGTHS = (1, 6, 7, 66, 131, 300, 513)


def _explained(platform: Platform) -> Iterator[tuple[str, EncoderAttentionProblem]]:
    for label, (num_heads, head_dim, window, causal) in _EXAMPLES.items():
        problem = make_problem(num_heads, head_dim, platform.preferred_dtype, window=window, causal=causal)
        yield f"{label}: {_describe(problem)}", problem


def _parity_steps(platform: Platform) -> Iterator[tuple[EncoderAttentionProblem, MixerStep]]:
    for dtype in _TOLERANCES:
        for index, (num_heads, head_dim, window) in enumerate(_PARITY_SHAPES + _CAUSAL_SHAPES):
            causal = index >= len(_PARITY_SHAPES)
            problem = make_problem(num_heads, head_dim, dtype, window=window, causal=causal)
            yield problem, make_step(problem, _LENGTHS, rotary=bool(index % 2), seed=index)


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, EncoderAttentionProblem, MixerStep]]:
    lengths = [length for _, length in requests]
    for label, (num_heads, head_dim, window, causal) in _EXAMPLES.items():
        problem = make_problem(num_heads, head_dim, platform.preferred_dtype, window=window, causal=causal)
        yield label, problem, make_step(problem, lengths, rotary=window is not None)


def _describe(problem: EncoderAttentionProblem) -> str:
    window = "" if problem.window is None else f", {problem.window} tokens on each side"
    causal = ", causal" if problem.causal else ""
    return f"{problem.num_heads} heads of {problem.head_dim}, {problem.dtype}{window}{causal}"


ENCODER_ATTENTION = MixerOperator(
    name=EncoderAttentionProblem.name,
    contract=encoder_attention,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=_TOLERANCES,
)
OPS = (ENCODER_ATTENTION,)
