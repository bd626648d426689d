"""Every layer against its unfused reference, in float32."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import linear

from atom_kernels.formats import Plain
from atom_kernels.norm import rms_norm
from atom_kernels.protocols import SingleRank
from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import (
    ColumnParallelLinear,
    GatedActivation,
    LMHead,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    Residual,
    RMSNorm,
    RowParallelLinear,
    Unreduced,
    Unsummed,
    VocabularyEmbedding,
    summed,
)
from atom_models.layers.loadable import expected_weights
from atom_models.quantization import HeldFormat, LayerQuantization
from atom_models.quantization.layouts import PlainLayout
from single_layers import close, fill, make_context


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer_class", [ReplicatedLinear, ColumnParallelLinear, RowParallelLinear])
def test_a_linear_is_a_matrix_product(layer_class, bias):
    layer = layer_class(24, 40, make_context(), prefix="a.proj", bias=bias)
    weights = fill(layer)
    x = torch.randn(5, 24)
    assert set(weights) == {"a.proj.weight"} | ({"a.proj.bias"} if bias else set())
    assert close(layer(x), linear(x, weights["a.proj.weight"], weights.get("a.proj.bias")))


def test_a_merged_linear_gives_its_parts_side_by_side():
    layer = MergedColumnParallelLinear(24, {"gate": 8, "up": 16}, make_context(), prefix="m.gate_up", bias=True)
    weights = fill(layer)
    x = torch.randn(3, 24)
    expected = [linear(x, weights[f"m.{name}.weight"], weights[f"m.{name}.bias"]) for name in ("gate", "up")]
    assert close(layer(x), torch.cat(expected, dim=-1))


def test_queries_keys_and_values_come_out_of_one_linear():
    layer = QKVParallelLinear(
        24, head_dim=8, num_heads=4, num_kv_heads=2, context=make_context(), prefix="a.qkv_proj", bias=True
    )
    weights = fill(layer)
    x = torch.randn(3, 24)
    for name, part in zip("qkv", layer(x).split(layer.sizes, dim=-1), strict=True):
        assert close(part, linear(x, weights[f"a.{name}_proj.weight"], weights[f"a.{name}_proj.bias"]))


@dataclass(frozen=True)
class ByName:
    """Formats for the names given; the others hold plain numbers."""

    held: dict
    name: str = "by-name"

    def for_layer(self, layer_name, dtype):
        return LayerQuantization(PlainLayout(dtype), self.held.get(layer_name.rpartition(".")[2], HeldFormat()))


@pytest.mark.parametrize("special", ["gate", "mid", "up"])
def test_shards_that_are_held_differently_run_as_several_plans_in_order(special):
    context = make_context(quantization=ByName({special: HeldFormat(Plain(torch.float32))}))
    layer = MergedColumnParallelLinear(16, {"gate": 8, "mid": 4, "up": 8}, context, prefix="m.merged")
    weights = fill(layer)
    assert len(layer._parts) == (3 if special == "mid" else 2)
    x = torch.randn(3, 16)
    expected = [linear(x, weights[f"m.{name}.weight"]) for name in ("gate", "mid", "up")]
    assert close(layer(x), torch.cat(expected, dim=-1))


def add_kernel(calls):
    """Stands for a linear's kernel that can add the residual itself: doubles, and notes how it was called."""

    def compute(x, residual=None):
        calls.append("plain" if residual is None else "added")
        return 2 * x if residual is None else 2 * x + residual

    return compute


def test_the_residual_is_the_sum_of_all_terms_whoever_computes_them():
    x, y, z = torch.randn(3, 5, 24)
    residual, calls = Residual(x), []
    assert residual.tensor() is x
    longer = residual.plus(y).plus(Unsummed(add_kernel(calls), z))
    assert close(longer.tensor(), x + y + 2 * z)
    assert residual.tensor() is x
    assert calls == ["added"]
    longer.tensor()
    assert calls == ["added"]


@pytest.mark.parametrize("unsummed", [False, True])
def test_a_norm_of_the_residual_leaves_the_sum_behind(unsummed):
    norm, calls = RMSNorm(24, 1e-5, make_context(), prefix="n"), []
    weight = fill(norm)["n.weight"]
    x, y = torch.randn(2, 5, 24)
    residual = Residual(x).plus(Unsummed(add_kernel(calls), y / 2) if unsummed else y)
    for _ in range(2):
        assert close(norm(residual), rms_norm(x + y, weight, 1e-5))
    assert close(residual.tensor(), x + y)
    assert calls == ["added"] * unsummed


def test_a_norm_takes_what_a_layer_left_unsummed():
    norm, calls = RMSNorm(24, 1e-5, make_context(), prefix="n"), []
    weight = fill(norm)["n.weight"]
    x = torch.randn(5, 24)
    assert close(norm(Unsummed(add_kernel(calls), x)), rms_norm(2 * x, weight, 1e-5))
    assert calls == ["plain"]


def doubling(calls):
    """Sums over two ranks that have the same."""

    def reduce(x):
        calls.append("summed")
        x.mul_(2)

    return reduce


def test_what_a_layer_left_unreduced_is_summed_once_whoever_asks():
    x, residual, calls = torch.randn(5, 24), torch.randn(5, 24), []
    left = Unreduced(doubling(calls), x.clone())
    assert close(left.tensor(), 2 * x)
    assert close(summed(left), 2 * x)
    assert close(Residual(residual).plus(left).tensor(), residual + 2 * x)
    assert calls == ["summed"]


def test_a_norm_sums_over_ranks_by_itself_unless_they_have_summed_already():
    norm, calls = RMSNorm(24, 1e-5, BuildContext(groups=Groups(SameRanks())), prefix="n"), []
    weight = fill(norm)["n.weight"]
    x, residual = torch.randn(5, 24), torch.randn(5, 24)
    for asked_before in (False, True):
        left = Unreduced(doubling(calls), x.clone())
        if asked_before:
            left.tensor()
        total = Residual(residual).plus(left)
        assert close(norm(total), rms_norm(residual + 2 * x, weight, 1e-5))
        assert close(total.tensor(), residual + 2 * x)
        assert calls == ["summed"] * asked_before


class SameRanks(SingleRank):
    """One of two ranks that have the same."""

    size = 2

    def all_reduce(self, x):
        return 2 * x


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_is_the_reference_norm(offset):
    norm = RMSNorm(24, 1e-5, make_context(), prefix="n", weight_offset=offset)
    weight = fill(norm)["n.weight"]
    x, residual = torch.randn(5, 24), torch.randn(5, 24)
    assert close(norm(x), rms_norm(x, weight, 1e-5, weight_offset=offset))
    total = Residual(residual).plus(x)
    assert close(norm(total), rms_norm(x + residual, weight, 1e-5, weight_offset=offset))
    assert close(total.tensor(), x + residual)
    assert close(norm.effective_weight, weight + offset)


@pytest.mark.parametrize(
    ("act", "reference"),
    [
        ("silu", torch.nn.functional.silu),
        ("gelu", torch.nn.functional.gelu),
        ("gelu_pytorch_tanh", lambda gate: torch.nn.functional.gelu(gate, approximate="tanh")),
        ("relu2", lambda gate: torch.relu(gate) ** 2),
    ],
)
def test_activations_by_their_names(act, reference):
    x = torch.randn(3, 16)
    assert close(GatedActivation(act, 8, make_context())(x), reference(x[:, :8]) * x[:, 8:])


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="hidden_act is 'relu6'; supported: silu"):
        GatedActivation("relu6", 8, make_context())


def test_the_embedding_looks_up_and_the_head_projects():
    context = make_context(dtype=torch.bfloat16)
    embedding, head = VocabularyEmbedding(10, 4, context, prefix="e"), LMHead(4, 10, context)
    table, projection = fill(embedding)["e.weight"].bfloat16(), fill(head)["lm_head.weight"].bfloat16()
    hidden = embedding(torch.tensor([3, 0, 9]))
    assert torch.equal(hidden, table[[3, 0, 9]])
    logits = head(hidden)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, linear(hidden.float(), projection.float()), atol=0.05)


def test_a_tied_head_uses_the_embedding():
    context = make_context()
    embedding = VocabularyEmbedding(10, 4, context, prefix="e")
    head = LMHead(4, 10, context, tied_to=embedding)
    assert expected_weights(head) == {}
    table = fill(embedding)["e.weight"]
    head.finish()
    x = torch.randn(2, 4)
    assert close(head(x), linear(x, table))


def test_a_layer_without_weights_says_so():
    layer = ReplicatedLinear(4, 4, make_context(), prefix="a.proj")
    with pytest.raises(RuntimeError, match=r"a\.proj has no weights yet"):
        layer(torch.zeros(1, 4))


def test_forward_hooks_of_layers_are_called():
    norm, seen = RMSNorm(24, 1e-5, make_context(), prefix="n"), []
    fill(norm)
    handle = norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    output = norm(torch.randn(2, 24))
    handle.remove()
    norm(torch.randn(2, 24))
    assert len(seen) == 1
    assert seen[0] is output
