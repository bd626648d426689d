"""Cached latents in float8 e4m3: what is written, what is read back, and where their scales lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.plan import usable_plans

SHAPE = (6, 48, 24, 16, 20)


def float8(*shape: int, dtype: str = "float32", scales: str = "none", **rules: object):
    return make_problem(*shape, dtype, kv_cache_dtype="float8_e4m3fn", scales=scales, **rules)


CASES = [(p.backend, dtype) for dtype in ("float32", "bfloat16") for p in usable_plans(float8(*SHAPE, dtype=dtype))]
every_case = pytest.mark.parametrize(("backend", "dtype"), CASES)
every_kind_of_scale = pytest.mark.parametrize("scales", ["none", "head", "token_head"])
native = pytest.mark.skipif(("native", "float32") not in CASES, reason="no native kernels here")
every_native = pytest.mark.parametrize("dtype", [dtype for backend, dtype in CASES if backend == "native"])
# Decodes around the borders of blocks, tiles and segments, chunks of prompts, and prompts that bfloat16 expands.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 530), (20, 20), (280, 280), (200, 500))


def attended_in_float64(problem, step, caches):
    """Attention over what `caches` say that they hold, by the definition."""
    q_THD, _ = apply_mla_prologue(problem, *step.inputs, step.prologue)
    factors = caches[1].double().unsqueeze(-1) if len(caches) > 1 else step.weights.get("latent_scale", 1.0)
    latents = (caches[0].float().double() * factors).flatten(0, 1)
    weight = step.weights["kv_b"].double().view(problem.num_heads, -1, problem.kv_lora_rank)
    key, value = weight.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=1)
    out, starts = [], step.geometry.query_start_loc.tolist()
    for request, length in enumerate(step.geometry.seq_lens.tolist()):
        blocks = step.geometry.block_table[request, : -(-length // problem.block_size)].long()
        slots = (blocks[:, None] * problem.block_size + torch.arange(problem.block_size)).flatten()[:length]
        latent, turned = latents[slots].split([problem.kv_lora_rank, problem.qk_rope_head_dim], dim=1)
        keys = torch.einsum("lc,hnc->lhn", latent, key)
        keys = torch.cat((keys, turned.unsqueeze(1).expand(-1, problem.num_heads, -1)), dim=2)
        queries = q_THD[starts[request] : starts[request + 1]].double()
        scores = torch.einsum("qhd,lhd->hql", queries, keys) * problem.scale
        position = torch.arange(length - len(queries), length)[:, None]
        scores = scores.masked_fill(torch.arange(length) > position, float("-inf"))
        out.append(torch.einsum("hql,lhv->qhv", scores.softmax(-1), torch.einsum("lc,hvc->lhv", latent, value)))
    return torch.cat(out)


@every_case
@every_kind_of_scale
def test_attention_is_that_of_the_dequantized_cache(backend, dtype, scales):
    problem = float8(*SHAPE, dtype=dtype, scales=scales)
    step = make_step(problem, MIXED, scattered=True)
    out, *caches = step.run(select_mixer(problem, only_backend=backend))
    tolerance = 5e-5 if dtype == "float32" else 4e-2
    expected = attended_in_float64(problem, step, caches)
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@native
@every_kind_of_scale
@every_native
@pytest.mark.parametrize("prologue", [True, False])
def test_the_kernels_write_the_bytes_of_the_reference(scales, dtype, prologue):
    problem = float8(*SHAPE, dtype=dtype, scales=scales)
    step = make_step(problem, [(200, 200)], prologue=prologue, interleaved=scales != "head")
    # From numbers that vanish over the smallest subnormal ones to those that saturate.
    q, kv = step.inputs
    kv = kv * torch.logspace(-5, 4, 200)[:, None].to(kv.dtype)
    kv[7] = 0
    step = replace(step, inputs=(q, kv))
    got, expected = (step.run(select_mixer(problem, only_backend=name))[1:] for name in ("native", "reference"))
    for one, other in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    codes, right = (x[0].view(torch.uint8).int() for x in (got, expected))
    # Norms are summed in another order: a number that lies between two codes may become the other one.
    assert (codes - right).abs().max() <= int(prologue)
    assert (codes != right).float().mean() < 1e-3


@native
@every_kind_of_scale
@every_native
def test_a_hit_of_the_prefix_cache_gives_the_bits_of_a_miss(scales, dtype):
    """The last tokens alone, over blocks that the whole prompt has filled."""
    problem = float8(*SHAPE, dtype=dtype, scales=scales)
    plan = select_mixer(problem, only_backend="native")
    whole, rest = make_step(problem, [(300, 300)]), make_step(problem, [(12, 300)])
    prologue = replace(whole.prologue, positions=whole.prologue.positions[288:])
    rest = replace(rest, inputs=tuple(x[288:] for x in whole.inputs), weights=whole.weights, prologue=prologue)
    caches, weights = whole.caches_for(plan), plan.prepare(whole.weights)
    miss = whole.run_in_place(plan, caches, weights=weights)
    kept = [cache.clone() for cache in caches]
    hit = rest.run_in_place(plan, caches, weights=weights)
    for cache, before in zip(caches, kept, strict=True):
        assert torch.equal(cache.view(torch.uint8), before.view(torch.uint8))
    # In bfloat16 the whole prompt is expanded and the rest of it absorbed.
    tolerance = 4e-2 if dtype == "bfloat16" else 0
    torch.testing.assert_close(hit, miss[288:], atol=tolerance, rtol=tolerance)


@native
@every_kind_of_scale
@every_native
def test_nothing_past_the_end_of_a_request_is_read(scales, dtype):
    problem = float8(*SHAPE, dtype=dtype, scales=scales)
    step = make_step(problem, [(1, 70), (40, 130), (90, 90)])
    plan = select_mixer(problem, only_backend="native")
    clean = step.run(plan)[0]
    slots = torch.ones(step.caches[0].shape[:2], dtype=torch.bool)
    for request, length in enumerate([70, 130, 90]):
        blocks = step.geometry.block_table[request, : -(-length // 16)].long()
        seen = torch.arange(len(blocks) * 16) < length
        slots[blocks] = ~seen.view(-1, 16)
    step.caches[0].view(torch.uint8)[slots] = 0x7F  # NaN
    for scale in step.caches[1:]:
        scale[slots] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


def test_a_token_has_one_scale_beside_its_latent():
    layout = float8(*SHAPE, scales="token_head").layout
    assert [(tensor.name, tensor.shape) for tensor in layout.tensors] == [
        ("latent", (16, 64)),
        ("latent_scale", (16,)),
    ]
