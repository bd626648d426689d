"""How far kernels of experts may be from the reference."""

from __future__ import annotations

import torch

from atom_kernels.moe.contract import ExpertsProblem
from atom_kernels.operator import Tolerance


def experts_tolerance(problem: ExpertsProblem) -> Tolerance:
    """By dtype: sums are float32, what lies between the products is rounded to it, as is the result."""
    return {
        torch.float32: Tolerance(2e-5, 2e-5),
        torch.bfloat16: Tolerance(4e-2, 2e-2),
        torch.float16: Tolerance(8e-3, 4e-3),
    }[problem.dtype]
