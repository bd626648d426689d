"""The layer of a mixture of experts, and every way in which checkpoints name and lay out its weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from atom_kernels.platform import detect_platform
from atom_kernels.protocols.collectives import SingleRank
from atom_models import BuildContext, num_idle_weights, sizes_told_apart
from atom_models.groups import Groups
from atom_models.layers import Experts, MoE, MoEConfig, Residual, RMSNorm, RoutingConfig, SharedExpertsConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.weights import load_dummy_weights

E, K, D, I = 4, 2, 16, 6  # noqa: E741


def make_moe(**overrides):
    context = overrides.pop("context", BuildContext())
    return MoE(MoEConfig(E, K, D, I, **overrides), context, prefix="m")


class Rank(SingleRank):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def make_experts(ranks=None, **options):
    context = BuildContext(groups=Groups(ranks or SingleRank()))
    return Experts(MoEConfig(E, K, D, I, **options), context, prefix="m.experts")


def make_weights(bias=False):
    """gate, up [E, I, D], down [E, D, I] and, if asked for, a bias of each."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate": (E, I, D), "up": (E, I, D), "down": (E, D, I)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    if bias:
        weights |= {f"{name}_bias": torch.randn(shape[:2], generator=generator) for name, shape in shapes.items()}
    return weights


def single_tensors(weights, gate="gate_proj", up="up_proj", down="down_proj"):
    tensors = {}
    for expert in range(E):
        for part, name in (("gate", gate), ("up", up), ("down", down)):
            tensors[f"m.experts.{expert}.{name}.weight"] = weights[part][expert]
            if f"{part}_bias" in weights:
                tensors[f"m.experts.{expert}.{name}.bias"] = weights[f"{part}_bias"][expert]
    return tensors


def fused_tensors(weights):
    gate_up = torch.cat((weights["gate"], weights["up"]), dim=1)
    return {"m.experts.gate_up_proj": gate_up, "m.experts.down_proj": weights["down"]}


def interleaved_tensors(weights):
    """As GPT-OSS stores them: inputs before outputs, rows of gate and up in turns."""
    return {
        "m.experts.gate_up_proj": torch.stack((weights["gate"], weights["up"]), dim=2).flatten(1, 2).transpose(1, 2),
        "m.experts.gate_up_proj_bias": torch.stack((weights["gate_bias"], weights["up_bias"]), dim=2).flatten(1),
        "m.experts.down_proj": weights["down"].transpose(1, 2),
        "m.experts.down_proj_bias": weights["down_bias"],
    }


def turned_tensors(weights):
    """As Qwen3-VL's mixtures store them: inputs before outputs."""
    return {name: tensor.transpose(1, 2) for name, tensor in fused_tensors(weights).items()}


def load_experts(tensors, ranks=None, **options):
    layer = make_experts(ranks, **options)
    layer.choose_names(tensors)
    assert sorted(expected_weights(layer)) == sorted(tensors)
    for name, tensor in tensors.items():
        layer.load_shard(name, tensor)
    layer.finish()
    return layer


def inputs():
    generator = torch.Generator().manual_seed(1)
    x, gates = torch.randn(5, D, generator=generator), torch.rand(5, K, generator=generator)
    return x, gates, torch.tensor([[0, 1], [3, 2], [1, 3], [2, 0], [0, 3]], dtype=torch.int32)


def expected_output(weights, x, gates, ids):
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for gate, expert in zip(gates[token], ids[token].tolist(), strict=True):

            def project(part, value, expert=expert):
                return weights[part][expert] @ value + weights.get(f"{part}_bias", torch.zeros(E, 1))[expert]

            hidden = torch.nn.functional.silu(project("gate", x[token])) * project("up", x[token])
            out[token] += gate * project("down", hidden)
    return out


@pytest.mark.parametrize(
    ("store", "options", "bias"),
    [
        (single_tensors, {}, False),
        (lambda w: single_tensors(w, "w1", "w3", "w2"), {}, False),
        (single_tensors, {"expert_bias": True}, True),
        (fused_tensors, {}, False),
        (interleaved_tensors, {"expert_bias": True, "fused_transposed": True, "fused_in_turns": True}, True),
        (turned_tensors, {"fused_transposed": True}, False),
    ],
    ids=["gate_proj", "w1", "biases", "fused", "interleaved", "turned"],
)
def test_experts_are_the_same_under_every_name(store, options, bias):
    weights = make_weights(bias)
    layer = load_experts(store(weights), **options)
    assert torch.allclose(layer(*inputs()), expected_output(weights, *inputs()), atol=1e-4)


@pytest.mark.parametrize(
    ("store", "options"),
    [(single_tensors, {}), (interleaved_tensors, {"fused_transposed": True, "fused_in_turns": True})],
    ids=["single", "fused"],
)
def test_the_sum_over_ranks_holds_each_bias_once(store, options):
    weights = make_weights(bias=True)
    ranks = [load_experts(store(weights), Rank(rank, 2), expert_bias=True, **options) for rank in range(2)]
    summed = sum(layer(*inputs()) for layer in ranks)
    assert torch.allclose(summed, expected_output(weights, *inputs()), atol=1e-4)


def test_a_checkpoint_without_experts_is_expected_to_name_each():
    layer = make_experts()
    layer.choose_names({"something.else"})
    assert "m.experts.3.down_proj.weight" in expected_weights(layer)


def test_a_tensor_of_another_shape_is_refused_by_name():
    layer = make_experts()
    with pytest.raises(ValueError, match=r"m\.experts\.0\.up_proj\.weight is \[16, 6\]"):
        layer.load_shard("m.experts.0.up_proj.weight", torch.zeros(D, I))


def test_weights_of_experts_that_a_token_does_not_choose_are_idle():
    moe = make_moe(shared_experts=SharedExpertsConfig(10))
    held = sum(math.prod(weight.shape) for weight in expected_weights(moe.experts).values())
    assert num_idle_weights(moe) == held * (E - K) // E


def test_experts_say_which_numbers_of_tokens_they_have_other_kernels_for_once_they_have_weights():
    moe = make_moe()
    assert sizes_told_apart(moe, 100) == []
    load_dummy_weights(moe)
    assert sizes_told_apart(moe, 100) == moe.experts.sizes_told_apart(100) != []


def test_shared_experts_see_every_token():
    moe = make_moe(shared_experts=SharedExpertsConfig(10))
    assert "m.shared_experts.gate_proj.weight" in expected_names(moe)
    load_dummy_weights(moe)
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(0))
    routed = moe.experts(x, *moe.router(x))
    assert torch.allclose(moe(x), routed + moe.shared_experts(x), atol=1e-6)
    assert moe.shared_experts(x).abs().max() > 0


def test_a_gate_scales_the_shared_expert_by_its_sigmoid():
    moe = make_moe(shared_experts=SharedExpertsConfig(10, name="shared_expert", gate="shared_expert_gate"))
    assert "m.shared_expert_gate.weight" in expected_names(moe)
    load_dummy_weights(moe)
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(0))
    shared = moe.shared_experts
    ungated = shared.down_proj(shared.act(shared.gate_up_proj(x)))
    assert torch.allclose(shared(x), torch.sigmoid(shared.gate(x)) * ungated)


@pytest.mark.parametrize("shared", [None, SharedExpertsConfig(10), SharedExpertsConfig(10, gate="shared_gate")])
def test_the_norm_that_follows_gets_the_same_sum_whoever_adds_the_residual(shared):
    x, residual = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(0))
    here = detect_platform()
    results = []
    for device in ("cpu", "cuda"):
        # Kernels of a GPU add up all at once; here the platform only says that it is one.
        context = BuildContext(platform=replace(here, device=device))
        norm = RMSNorm(D, 1e-6, context, prefix="norm")
        moe = make_moe(context=context, shared_experts=shared)
        load_dummy_weights(moe)
        load_dummy_weights(norm)
        total = Residual(residual).plus(moe(x))
        results.append((norm(total), total.tensor()))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


class TwoRanks(SingleRank):
    """A rank of two whose other one has computed the same."""

    size = 2

    def all_reduce(self, x):
        return 2 * x


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_experts_of_several_ranks_are_summed_before_the_residual_is_added(device):
    context = BuildContext(platform=replace(detect_platform(), device=device), groups=Groups(TwoRanks()))
    moe = make_moe(context=context)
    load_dummy_weights(moe)
    x, residual = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(0))
    weights, ids = moe.router(x)
    expected = residual + 2 * moe.experts(x, weights, ids)
    assert torch.allclose(Residual(residual).plus(moe(x)).tensor(), expected, atol=1e-5)


def test_a_router_in_float32_chooses_by_float32_logits_in_a_bfloat16_model():
    logits = []
    for float32 in (True, False):
        moe = make_moe(context=BuildContext(dtype=torch.bfloat16), routing=RoutingConfig(float32=float32))
        load_dummy_weights(moe)
        x = torch.randn(3, D, generator=torch.Generator().manual_seed(0)).bfloat16()
        logits.append(moe.router.linear(x.to(torch.float32 if float32 else torch.bfloat16)).dtype)
        weights, ids = moe.router(x)
        assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
        assert moe(x).dtype == torch.bfloat16
    assert logits == [torch.float32, torch.bfloat16]


def test_names_of_router_and_bias_are_the_models():
    moe = make_moe(routing=RoutingConfig(linear="router", linear_bias=True, correction_bias="bias"))
    assert {"m.router.weight", "m.router.bias", "m.bias"} <= set(expected_names(moe))


def expected_names(moe):
    return [name for layer in loadable(moe) for name in expected_weights(layer)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"routing": RoutingConfig(renormalize=True)},
        {"routing": RoutingConfig(linear_bias=True), "expert_bias": True, "hidden_act": "swiglu_oai"},
        {
            "routing": RoutingConfig("sigmoid", True, 2, 1, "top2", 2.5, correction_bias="bias", float32=True),
            "shared_experts": SharedExpertsConfig(10, gate="shared_gate"),
        },
    ],
    ids=["softmax", "swiglu_oai", "groups"],
)
def test_a_layer_on_a_gpu_never_makes_the_host_wait_and_can_be_captured(options):
    moe = make_moe(context=BuildContext(device="cuda", dtype=torch.bfloat16), **options)
    load_dummy_weights(moe)
    x = torch.randn(5, D, generator=torch.Generator().manual_seed(0)).to("cuda", torch.bfloat16)
    moe(x).tensor()
    try:
        torch.cuda.set_sync_debug_mode("error")
        expected = moe(x).tensor()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = moe(x).tensor()
    graph.replay()
    assert torch.equal(captured, expected)
    assert captured.float().abs().max() > 0
