"""Layers whose linears norm, activate and add by themselves give what they give one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from atom_kernels.formats import Plain
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import SINGLE_RANK
from atom_kernels.settings import triton_interpret
from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import (
    GatedActivation,
    MergedColumnParallelLinear,
    Residual,
    RMSNorm,
    RowParallelLinear,
    Sent,
    Unreduced,
    linear_weights,
    summed,
)
from atom_models.layers.loadable import expected_weights
from atom_models.quantization import LINEARS, HeldFormat, LayerQuantization
from atom_models.quantization.layouts import PlainLayout
from forked_ranks import run_ranks, shared_tensor

HIDDEN, INTERMEDIATE = 24, 40


def make_platform(*, fused):
    """This machine, with or without its Triton."""
    platform = detect_platform()
    if fused:
        return platform
    rest = tuple(name for name in platform.backends if name != "triton")
    return replace(platform, backends=rest, unavailable=(*platform.unavailable, ("triton", "left out")))


class Block:
    """A norm, an MLP that ends with a residual, and the norm after it, as decoder layers have them."""

    def __init__(self, *, fused, hidden_act="silu", bias=False, ranks=SINGLE_RANK):
        platform = make_platform(fused=fused)
        context = BuildContext(dtype=torch.float32, platform=platform, device=platform.device, groups=Groups(ranks))
        sizes = {"gate_proj": INTERMEDIATE, "up_proj": INTERMEDIATE}
        self.gate_up = MergedColumnParallelLinear(HIDDEN, sizes, context, prefix="mlp.gate_up_proj", bias=bias)
        self.act = GatedActivation(hidden_act, INTERMEDIATE, context, after=self.gate_up)
        self.norm = RMSNorm(HIDDEN, 1e-5, context, prefix="norm", feeds=self.gate_up, weight_offset=1.0)
        self.last_norm = RMSNorm(HIDDEN, 1e-5, context, prefix="last_norm")
        self.down = RowParallelLinear(INTERMEDIATE, HIDDEN, context, prefix="mlp.down_proj", bias=bias)
        generator = torch.Generator().manual_seed(0)
        for layer in (self.gate_up, self.norm, self.last_norm, self.down):
            for name, expected in expected_weights(layer).items():
                layer.load_shard(name, torch.randn(expected.shape, generator=generator) * 0.3)
            layer.finish()

    def run(self, x, residual):
        residual = Residual(residual).plus(x)
        residual = residual.plus(self.down(self.act(self.gate_up(self.norm(residual)))))
        return self.last_norm(residual), residual.tensor()


@pytest.mark.skipif(not triton_interpret(), reason="its ranks are processes of this machine")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("num_rows", "term"), [(3, Unreduced), (900, Sent)])
def test_a_block_that_ranks_share_sums_adds_and_norms_by_one_kernel(num_rows, term):
    x, residual = torch.randn(2, num_rows, HIDDEN)
    expected = torch.stack(Block(fused=False).run(x, residual))
    results, reduced = shared_tensor(2 * expected.nbytes).view(torch.float32).view(2, *expected.shape), shared_tensor(2)

    def work(rank):
        block = Block(fused=True, ranks=rank)
        results[rank.rank] = torch.stack(block.run(x, residual))
        reduced[rank.rank] = isinstance(block.down(block.act(block.gate_up(x))), term)

    run_ranks(2, 1 << 14, work)
    assert reduced.tolist() == [1, 1]
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not triton_interpret(), reason="its ranks are processes of this machine")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("adapted", "expected"), [(False, [256, 256, 256, 132]), (True, [900])])
def test_long_rows_are_multiplied_in_pieces_unless_adapters_tell_rows_by_their_place(adapted, expected):
    multiplied = shared_tensor(2 * 8 * len(expected)).view(torch.int64).view(2, -1)

    def work(rank):
        down, counts = Block(fused=True, ranks=rank).down, []
        product, down.adapted = down._apply, object() if adapted else None
        down._apply = lambda x: counts.append(len(x)) or product(x)
        summed(down(torch.randn(900, INTERMEDIATE // 2)))
        multiplied[rank.rank] = torch.tensor(counts)

    run_ranks(2, 1 << 14, work)
    assert multiplied.tolist() == [expected] * 2


@pytest.mark.parametrize("num_rows", [1, 3, 37])
@pytest.mark.parametrize(("hidden_act", "bias"), [("silu", False), ("silu", True), ("gelu", False)])
def test_a_fused_block_equals_the_same_block_unfused(hidden_act, bias, num_rows):
    fused, plain = (Block(fused=fused, hidden_act=hidden_act, bias=bias) for fused in (True, False))
    assert (fused.gate_up.max_fused_rows, plain.gate_up.max_fused_rows) == (32, 0)
    x, residual = torch.randn(2, num_rows, HIDDEN, device=detect_platform().device)
    for got, expected in zip(fused.run(x, residual), plain.run(x, residual), strict=True):
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


def test_a_fused_norm_hands_its_input_on_and_the_linear_takes_normed_input_too():
    block = Block(fused=True)
    x = torch.randn(3, HIDDEN, device=detect_platform().device)
    handed_on = block.norm(x)
    assert handed_on.x_TD is x
    normed = torch.nn.functional.rms_norm(x, (HIDDEN,), handed_on.weight_D + 1.0, 1e-5)
    torch.testing.assert_close(block.gate_up(handed_on), block.gate_up(normed), atol=2e-5, rtol=1e-5)


class ReadByTorch(Plain):
    """A format that no kernel knows."""


@dataclass(frozen=True)
class OneByItself:
    """One shard is held in a format that only torch multiplies, the others as plain numbers."""

    special: str
    name: str = "one by itself"

    def for_layer(self, layer_name, dtype):
        held = HeldFormat(ReadByTorch(dtype)) if layer_name.endswith(self.special) else HeldFormat()
        return LayerQuantization(PlainLayout(dtype), held)


@pytest.mark.parametrize("special", ["gate_proj", "up_proj"])
def test_a_linear_norms_by_itself_only_if_all_of_its_shards_do(special, monkeypatch):
    monkeypatch.setattr(linear_weights, "LINEARS", replace(LINEARS, read_by_torch=(ReadByTorch(torch.float32),)))
    platform = make_platform(fused=True)
    context = BuildContext(dtype=torch.float32, platform=platform, quantization=OneByItself(special))
    sizes = {"gate_proj": INTERMEDIATE, "up_proj": INTERMEDIATE}
    linear = MergedColumnParallelLinear(HIDDEN, sizes, context, prefix="mlp.gate_up_proj")
    assert linear.max_fused_rows == 0
