"""Which norms a linear's kernel takes over on a GPU that this machine need not have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.formats import Float8
from atom_kernels.platform import Platform
from atom_models import BuildContext
from atom_models.architectures.llama import LlamaMLP
from atom_models.layers import MergedColumnParallelLinear, Residual, RMSNorm
from atom_models.layers.norms.residual import Unnormed
from atom_models.quantization import HeldFormat, LayerQuantization
from atom_models.quantization.layouts import Float8Layout

pytest.importorskip("triton", reason="Triton's kernels are planned where Triton is installed")

H100 = replace(Platform.nvidia("sm_90"), name="NVIDIA H100 80GB HBM3")
# As in Gemma 2 9B, whose product without an activation is the library's sooner.
SIZES: Any = SimpleNamespace(hidden_size=3584, intermediate_size=14336, mlp_bias=False, activation="silu")


def test_an_mlp_norms_up_to_the_rows_of_the_linear_that_ends_with_its_activation():
    """The two problems have plans of their own, with limits of their own."""
    context = BuildContext(dtype=torch.bfloat16, platform=H100)
    sizes = {"gate_proj": SIZES.intermediate_size, "up_proj": SIZES.intermediate_size}
    by_itself = MergedColumnParallelLinear(SIZES.hidden_size, sizes, context, prefix="mlp.gate_up_proj")
    mlp = LlamaMLP(SIZES, context, prefix="mlp")
    assert by_itself.max_normed_rows < mlp.max_normed_rows == mlp.gate_up_proj.max_normed_rows == 128


def test_a_linear_norms_as_many_rows_as_it_can_and_no_more():
    norm = RMSNorm(64, 1e-5, BuildContext(), prefix="norm", feeds=SimpleNamespace(max_normed_rows=4, row_rounding=None))
    norm.load_shard("norm.weight", torch.ones(64))
    norm.finish()
    for num_rows in (1, 4, 5):
        assert isinstance(norm(torch.ones(num_rows, 64)), Unnormed) == (num_rows <= 4)


class InFloat8:
    """Every linear is fp8 by row, and its inputs may be rounded."""

    name = "fp8"

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        return LayerQuantization(Float8Layout(), HeldFormat(inputs=Float8()))


def test_however_many_rows_there_are_what_rounds_them_norms_them_and_no_sum_is_computed_twice():
    context = BuildContext(dtype=torch.bfloat16, platform=H100, quantization=InFloat8())
    linear = MergedColumnParallelLinear(64, {"gate_proj": 64, "up_proj": 64}, context, prefix="mlp.gate_up_proj")
    norm = RMSNorm(64, 1e-5, context, prefix="norm", feeds=linear)
    norm.load_shard("norm.weight", torch.ones(64))
    norm.finish()
    x, term = torch.ones(2, 1000, 64, dtype=torch.bfloat16)
    assert norm(x).x_TD is x
    residual = Residual(x).plus(term)
    handed_on = norm(residual)
    assert handed_on.x_TD is residual.tensor()
    assert torch.equal(handed_on.x_TD, x + term)
