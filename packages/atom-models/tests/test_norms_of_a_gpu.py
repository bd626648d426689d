"""Which norms a linear's kernel takes over on a GPU that this machine need not have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.platform import Platform
from atom_models import BuildContext
from atom_models.architectures.llama import LlamaMLP
from atom_models.layers import MergedColumnParallelLinear

pytest.importorskip("triton", reason="Triton's kernels are planned where Triton is installed")

H100 = replace(Platform.nvidia("sm_90"), name="NVIDIA H100 80GB HBM3")
# As in Qwen3 8B, for which plans are tuned.
SIZES: Any = SimpleNamespace(hidden_size=4096, intermediate_size=12288, mlp_bias=False, activation="silu")


def test_an_mlp_norms_up_to_the_rows_of_the_linear_that_ends_with_its_activation():
    """The two problems have plans of their own, with limits of their own."""
    context = BuildContext(dtype=torch.bfloat16, platform=H100)
    sizes = {"gate_proj": SIZES.intermediate_size, "up_proj": SIZES.intermediate_size}
    by_itself = MergedColumnParallelLinear(SIZES.hidden_size, sizes, context, prefix="mlp.gate_up_proj")
    mlp = LlamaMLP(SIZES, context, prefix="mlp")
    assert by_itself.max_fused_rows < mlp.max_fused_rows == mlp.gate_up_proj.max_fused_rows == 128
