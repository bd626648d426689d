"""Every layer against its unfused reference, in float32."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from atom_kernels.attention import AttentionPrologue, apply_prologue
from atom_kernels.norm import rms_norm
from atom_kernels.protocols import BatchGeometry
from atom_kernels.rotary import apply_rotary
from atom_models import BuildContext
from atom_models.forward_context import ForwardContext, get_forward_context, set_forward_context
from atom_models.layers import (
    Attention,
    ColumnParallelLinear,
    GatedActivation,
    LMHead,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    Residual,
    RMSNorm,
    RowParallelLinear,
    Unsummed,
    VocabularyEmbedding,
    make_rotary,
)
from atom_models.quantization import Dense, OneScheme


def make_context(**overrides):
    return BuildContext(**{"dtype": torch.float32, **overrides})


def fill(layer, seed=0):
    """Random weights through the layer's own door; returns them by name."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(e.shape, generator=generator) for name, e in layer.expected_weights().items()}
    for name, weight in weights.items():
        layer.load_shard(name, weight)
    layer.finish()
    return weights


def close(actual, expected):
    return torch.allclose(actual, expected, atol=1e-5, rtol=1e-5)


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
class OtherDense(Dense):
    name: str = "other"


@dataclass(frozen=True)
class ByName:
    """Other schemes for the names given."""

    others: dict
    name: str = "by-name"

    def scheme_for(self, layer_name):
        return self.others.get(layer_name.rpartition(".")[2], Dense())


@pytest.mark.parametrize("special", ["gate", "mid", "up"])
def test_shards_of_different_schemes_run_as_several_plans_in_order(special):
    context = make_context(quantization=ByName({special: OtherDense()}))
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


@dataclass(frozen=True)
class PerToken:
    """Values in int8 with a scale for each token."""

    name: str = "per-token-int8"

    def encode(self, x_TD):
        scale = x_TD.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        return (x_TD / scale).round().to(torch.int8), scale


@dataclass(frozen=True)
class WantsPerToken(Dense):
    """A scheme whose linears take values and scales."""

    name: str = "wants-per-token"

    def input_format(self, spec):
        return PerToken()

    def finish(self, spec, weights):
        weight = weights["weight"]
        return lambda x: linear(x[0].float(), weight) * x[1]


def test_a_norm_emits_the_format_that_the_linear_it_feeds_wants():
    context = make_context(quantization=OneScheme("test", WantsPerToken()))
    layer = ColumnParallelLinear(24, 40, context, prefix="a.proj")
    norm = RMSNorm(24, 1e-5, context, prefix="n", feeds=layer)
    plain = RMSNorm(24, 1e-5, context, prefix="n")
    fill(layer), fill(norm), fill(plain)
    x, residual = torch.randn(5, 24), torch.randn(5, 24)
    unfused = PerToken().encode(plain(x))
    assert all(torch.equal(actual, expected) for actual, expected in zip(norm(x), unfused, strict=True))
    total = Residual(residual).plus(x)
    assert torch.equal(norm(total)[0], PerToken().encode(plain(x + residual))[0])
    assert torch.equal(total.tensor(), x + residual)
    assert torch.equal(layer(norm(x)), layer(plain(x)))


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
    assert head.expected_weights() == {}
    table = fill(embedding)["e.weight"]
    head.finish()
    x = torch.randn(2, 4)
    assert close(head(x), linear(x, table))


ATTENTION = {
    "plain": {},
    "rotary": {"rotary": True},
    "head norms": {"norms": True},
    "head norms and rotary": {"rotary": True, "norms": True},
    "window": {"sliding_window": 4},
    "sinks": {"sinks": True},
    "soft cap": {"soft_cap": 2.0},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention_equals_its_unfused_parts(case):
    options = dict(ATTENTION[case])
    context, tokens, heads, kv_heads, dim = make_context(block_size=4), 11, 4, 2, 8
    norms = [RMSNorm(dim, 1e-5, context, prefix=name) for name in ("q", "k")] if options.pop("norms", False) else []
    weights = [next(iter(fill(norm, seed).values())) for seed, norm in enumerate(norms)]
    rotary = make_rotary({"rope_type": "default"}, dim, 64, context=context) if options.pop("rotary", False) else None
    layer = Attention(
        heads,
        kv_heads,
        dim,
        context=context,
        prefix="layer.attn",
        rotary=rotary,
        q_norm=norms[0] if norms else None,
        k_norm=norms[1] if norms else None,
        **options,
    )
    sinks = next(iter(fill(layer).values()), None)
    q, k, v = (torch.randn(tokens, count * dim) for count in (heads, kv_heads, kv_heads))
    positions = torch.arange(tokens)

    q_THD, k_TKD = q.view(tokens, heads, dim), k.view(tokens, kv_heads, dim)
    if norms:
        q_THD, k_TKD = rms_norm(q_THD, weights[0], 1e-5), rms_norm(k_TKD, weights[1], 1e-5)
    if rotary is not None:
        q_THD, k_TKD = apply_rotary(q_THD, k_TKD, positions, rotary.cos_sin_cache)
    expected = attend(q_THD, k_TKD, v.view(tokens, kv_heads, dim), options, sinks)
    actual = run_attention(layer, q, k, v, positions)
    assert torch.allclose(actual, expected.reshape(tokens, -1), atol=1e-5)


def attend(q_THD, k_TKD, v_TKD, options, sinks):
    """Written out: scores, cap, mask, sink column, softmax."""
    tokens, heads, dim = q_THD.shape
    k_THD, v_THD = (x.repeat_interleave(heads // k_TKD.shape[1], dim=1) for x in (k_TKD, v_TKD))
    scores = torch.einsum("qhd,khd->hqk", q_THD, k_THD) * options.get("scale", dim**-0.5)
    if "soft_cap" in options:
        scores = options["soft_cap"] * torch.tanh(scores / options["soft_cap"])
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    hidden = (distance < 0) | (distance >= options.get("sliding_window", tokens))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(heads, 1, 1).expand(heads, tokens, 1)), dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :tokens], v_THD)


def run_attention(layer, q, k, v, positions):
    tokens, block_size = len(q), layer.plan.layout.block_size
    num_blocks = -(-tokens // block_size)
    geometry = BatchGeometry(
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
        seq_lens=torch.tensor([tokens], dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
        slot_mapping=torch.arange(tokens),
        num_reqs=1,
        num_tokens=tokens,
        num_decodes=0,
        max_query_len=tokens,
        max_seq_len=tokens,
    )
    caches = {layer.name: layer.plan.layout.allocate(num_blocks)}
    with set_forward_context(ForwardContext(caches, {layer.name: layer.plan.build_metadata(geometry)})):
        return layer(q, k, v, positions)


class TheirHost:
    """Attends without a cache; torch.compile may look inside."""

    plan = None
    traceable = True

    def __init__(self, problem, layer_name, context):
        self.problem, self.layer_name, self.sinks = problem, layer_name, None

    def take_weights(self, weights):
        self.sinks = weights["sinks"]

    def mix(self, inputs, prologue: AttentionPrologue):
        q_THD, k_TKD, v_TKD = inputs
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        q, k, v = (x.transpose(0, 1) for x in (q_THD, k_TKD, v_TKD))
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1).contiguous()


def test_another_host_may_attend_through_its_own_layer():
    theirs, ours = make_context(mixer_host=TheirHost), make_context()
    rotary = make_rotary({"rope_type": "default"}, 8, 64, context=ours)
    layers = [Attention(4, 2, 8, context=context, prefix="a.attn", rotary=rotary) for context in (theirs, ours)]
    q, k, v = torch.randn(6, 32), torch.randn(6, 16), torch.randn(6, 16)
    positions = torch.arange(6)
    assert layers[0].plan is None
    expected = run_attention(layers[1], q, k, v, positions)
    assert torch.allclose(layers[0](q, k, v, positions), expected, atol=1e-5)


def test_a_traceable_host_is_traced_and_no_opaque_op_of_ours_is_around_it():
    layer = Attention(4, 2, 8, context=make_context(mixer_host=TheirHost), prefix="a.attn")
    targets = []

    def note(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    inputs = torch.randn(6, 32), torch.randn(6, 16), torch.randn(6, 16), torch.arange(6)
    assert torch.equal(torch.compile(layer, backend=note, fullgraph=True)(*inputs), layer(*inputs))
    assert any("scaled_dot_product_attention" in target for target in targets)
    assert not any("atom_models" in target for target in targets)


def test_another_host_gets_the_sinks_when_they_are_loaded():
    hosts = []

    def make(*arguments):
        hosts.append(TheirHost(*arguments))
        return hosts[0]

    layer = Attention(4, 2, 8, context=make_context(mixer_host=make), prefix="a.attn", sinks=True)
    layer.load_shard("a.sinks", torch.arange(4.0))
    layer.finish()
    assert torch.equal(hosts[0].sinks, torch.arange(4.0))


def test_attention_outside_a_forward_context_is_an_error():
    layer = Attention(4, 2, 8, context=make_context(), prefix="a.attn")
    with pytest.raises(RuntimeError, match="no forward context"):
        layer(torch.zeros(1, 32), torch.zeros(1, 16), torch.zeros(1, 16), torch.zeros(1, dtype=torch.int64))


def test_forward_contexts_nest_and_end_with_an_exception():
    outer, inner = ForwardContext({}, {}), ForwardContext({}, {})

    def fail_inside():
        with set_forward_context(inner):
            assert get_forward_context() is inner
            raise KeyError

    with set_forward_context(outer):
        with pytest.raises(KeyError):
            fail_inside()
        assert get_forward_context() is outer
    with pytest.raises(RuntimeError):
        get_forward_context()


def test_each_thread_has_a_forward_context_of_its_own():
    """Two engines in one process: neither's step may see the caches of the other."""
    both = threading.Barrier(2, timeout=30)

    def run(context):
        with set_forward_context(context):
            both.wait()
            found = get_forward_context()
            both.wait()
            return found

    contexts = [ForwardContext({"a": ()}, {}), ForwardContext({"b": ()}, {})]
    with ThreadPoolExecutor(2) as threads:
        assert [id(found) for found in threads.map(run, contexts)] == [id(context) for context in contexts]


def test_what_attention_caches_is_told_by_its_problem():
    layer = Attention(4, 2, 8, context=make_context(kv_cache_dtype="float8_e4m3fn"), prefix="a", sliding_window=32)
    assert layer.problem.layout.block_bytes == layer.problem.block_size * 2 * 2 * 8
    assert layer.problem.sliding_window == 32
    assert layer.plan.problem is layer.problem


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
