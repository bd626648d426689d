"""bfloat16 linear through oneDNN with its weight reordered once, where plain `linear` reorders at every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.host_threads.probing import run_apart
from atom_kernels.linear.contract import LinearProblem, linear
from atom_kernels.operator import Backend, WeightLayout


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    return {"weight": torch.ops.mkldnn._reorder_linear_weight(weights["weight"].contiguous()), "bias": weights["bias"]}


def _bind(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias, function = packed["weight"], packed["bias"], torch.ops.mkldnn._linear_pointwise.default
    no_scalars: list[Any] = []
    if problem.result_dtype != problem.dtype:
        return lambda x_TK: function(x_TK, weight, bias, "none", no_scalars, "").to(problem.result_dtype)
    return lambda x_TK: function(x_TK, weight, bias, "none", no_scalars, "")


@functools.cache
def _probe_once() -> str | None:
    return run_apart(_probe)


def _probe() -> str | None:
    """These operators are torch's own but private: trust them only where a small case comes out right."""
    problem = LinearProblem(48, 40, torch.bfloat16, bias=True)
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((40, 48), (40,), (5, 48)))
    try:
        actual = _bind(problem, _pack(problem, {"weight": weight, "bias": bias}))(x)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return f"torch {torch.__version__} cannot run prepacked oneDNN linears: {str(error).splitlines()[0]}"
    if actual.dtype != torch.bfloat16 or not torch.allclose(actual, linear(x, weight, bias), atol=0.1, rtol=0.02):
        return f"torch {torch.__version__} gives wrong results for prepacked oneDNN linears"
    return None


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if (reason := problem.why_not_plain()) is not None:
        return reason
    if problem.dtype != torch.bfloat16:
        return f"packed for bfloat16 only, not {problem.dtype}"
    if not platform.fast_bf16:
        return f"bfloat16 is not fast here: {platform.bf16_reason}"
    return _probe_once()


PREPACKED_BACKEND = Backend(
    name="onednn",
    implementation="oneDNN linear, weight packed once",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("onednn_packed", pack=_pack),
)
