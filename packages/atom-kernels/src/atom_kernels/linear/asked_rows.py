"""Linears in MXFP4 whose rows are rounded because who serves asks for it, not because their checkpoint says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from atom_kernels import settings
from atom_kernels.aiter.quantized import mxfp4, mxfp4_inside
from atom_kernels.formats import Mxfp4

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem
    from atom_kernels.platform import Platform

# The share is of normal numbers: weights are in MXFP4 already, and rows alone change.
ROWS_NOTE = (
    "linears in mxfp4 round their rows to mxfp4 (ATOM_AITER_MXFP4_ROWS), which their checkpoint leaves as they are: "
    "products change by about 12 % of their size"
)


def with_rows_asked_for(problem: LinearProblem, platform: Platform) -> LinearProblem:
    """The problem with rows in MXFP4, where the environment asks for them and one of AITER's products takes it so."""
    if problem.input_format is not None or not settings.aiter_mxfp4_rows():
        return problem
    rounded = replace(problem, input_format=Mxfp4())
    products = (mxfp4.BACKEND, mxfp4_inside.BACKEND)
    return rounded if any(product.why_not(rounded, platform) is None for product in products) else problem
