"""By what latent attention on AITER multiplies its heads: in bfloat16, or rounded where the environment asks for it.

No checkpoint says that queries, or what attention finds, may be rounded: so that is left to who serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels import settings
from atom_kernels.aiter.quantized import batched_fp8, batched_mxfp4
from atom_kernels.head_product import HEAD_PRODUCT, HeadProductProblem
from atom_kernels.head_product.contract import MXFP4
from atom_kernels.select import select

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.plan import Plan
    from atom_kernels.platform import Platform

_FP8 = "fp8"
_VARIABLES = {MXFP4: "ATOM_USE_TRITON_MXFP4_BMM", _FP8: "ATOM_AITER_FP8_BMM"}
_BACKENDS = {MXFP4: batched_mxfp4.BACKEND, _FP8: batched_fp8.BACKEND}
# How far products are from those in bfloat16, as a share of their size: of normal numbers, rounded on both sides.
_ERRORS = {MXFP4: "17 %", _FP8: "4 %"}


@dataclass(frozen=True)
class LatentProducts:
    """The products of one layer.

    Attributes:
        keys, values: what absorbs queries ``[H, N] -> [H, C]``, and what makes values of latents ``[H, C] -> [H, V]``.
        rounded: "mxfp4" or "fp8", as it was asked for; None for bfloat16.
        reasons: why it is not what it might have been, by name.
    """

    keys: Plan
    values: Plan
    rounded: str | None
    reasons: tuple[tuple[str, str], ...]

    @property
    def num_bytes(self) -> int:
        return self.keys.weight_bytes + self.values.weight_bytes

    @property
    def note(self) -> str | None:
        """What to tell who serves, where products are rounded."""
        if self.rounded is None:
            return None
        return (
            f"latent attention multiplies heads in {self.rounded} ({_VARIABLES[self.rounded]}): queries, what it finds "
            f"and kv_b_proj are rounded, by which products change by about {_ERRORS[self.rounded]} of their size"
        )


def latent_products(problem: MlaProblem, platform: Platform) -> LatentProducts:
    """Rounded to MXFP4 where that is asked for and can be, else to fp8 likewise, else in bfloat16."""
    asked = {MXFP4: settings.aiter_mxfp4_heads(), _FP8: settings.aiter_fp8_heads()}
    rounded, reasons = None, []
    for name, is_asked in asked.items():
        reason = _why_not(name, problem, platform) if is_asked else f"{_VARIABLES[name]}=1 asks for it"
        reason = reason if rounded is None else f"{rounded} goes before it"
        if reason is None:
            rounded = name
        else:
            reasons.append((f"products of heads in {name}", f"rounds queries and what attention finds: {reason}"))
    keys, values = _problems(problem, rounded, platform)
    chosen = select(HEAD_PRODUCT, keys, platform), select(HEAD_PRODUCT, values, platform)
    return LatentProducts(*chosen, rounded, tuple(reasons))


def _why_not(name: str, problem: MlaProblem, platform: Platform) -> str | None:
    reasons = (_BACKENDS[name].why_not(one, platform) for one in _problems(problem, name, platform))
    return next((reason for reason in reasons if reason is not None), None)


def _problems(problem: MlaProblem, rounded: str | None, platform: Platform) -> list[HeadProductProblem]:
    heads, latents, dtype = problem.num_heads, problem.kv_lora_rank, getattr(torch, problem.dtype)
    rounded_to = platform.float8 if rounded == _FP8 else rounded
    sizes = (problem.qk_nope_head_dim, latents), (latents, problem.v_head_dim)
    return [HeadProductProblem(heads, *size, dtype, rounded_to) for size in sizes]
