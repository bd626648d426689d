"""Attention against its unfused parts, by our kernels and by another host, and the context that it runs in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from atom_kernels.attention import AttentionPrologue, apply_prologue
from atom_kernels.norm import rms_norm
from atom_kernels.protocols import BatchGeometry, CacheFormat
from atom_kernels.rotary import apply_rotary
from atom_models.forward_context import ForwardContext, get_forward_context, set_forward_context
from atom_models.layers import (
    Attention,
    RMSNorm,
    make_rotary,
)
from single_layers import fill, make_context

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
    layer = Attention(4, 2, 8, context=make_context(cache=CacheFormat("float8_e4m3fn")), prefix="a", sliding_window=32)
    assert layer.problem.layout.block_bytes == layer.problem.block_size * 2 * 2 * 8
    assert layer.problem.sliding_window == 32
    assert layer.plan.problem is layer.problem
