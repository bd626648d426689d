"""Attention through AITER against the reference: families, chunks, prefixes, padding, layouts, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from atom_kernels.aiter.attention.steps import cut_prologue
from atom_kernels.attention import apply_prologue, paged_attention
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.problem import AttentionPrologue
from atom_kernels.mixers import UnsupportedMixerError, select_mixer
from atom_kernels.platform import Platform

# Heads, key heads, head_dim; the rotary dim; what else the family asks for.
FAMILIES = {
    "llama": ((32, 8, 128), 128, {}),
    "qwen3": ((16, 2, 128), 128, {"norms": True}),
    "glm-4": ((16, 1, 128), 64, {"interleaved": True}),
    "gpt-oss": ((16, 2, 64), 64, {"has_sinks": True}),
    "gpt-oss window": ((16, 2, 64), 64, {"has_sinks": True, "sliding_window": 128}),
    "gemma": ((8, 4, 256), 256, {"soft_cap": 30.0, "scale": 0.07}),
    "odd": ((6, 2, 96), None, {"sliding_window": 5}),
}
RULES = ("has_sinks", "sliding_window", "soft_cap", "scale")
# One step with everything in it, and steps of one kind.
MIXED = [(1, 1), (1, 16), (1, 300), (20, 20), (130, 300), (17, 65)]
DECODES = [(1, 5), (1, 16), (1, 129)]
CHUNKS = [(4, 4), (33, 70), (16, 32)]
WHOLE = [(37, 37)]
NEW = [(1, 9), (1, 40), (20, 20), (5, 5)]
STEPS = {"mixed": MIXED, "decodes": DECODES, "chunks": CHUNKS, "whole": WHOLE, "new": NEW}
MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi")]


@pytest.fixture(params=MACHINES, ids="-".join)
def machine(request):
    with amd_machine(*request.param) as platform:
        yield platform


def of_family(name, **overrides):
    heads, rotary_dim, options = FAMILIES[name]
    rules = {key: value for key, value in options.items() if key in RULES}
    problem = make_problem(*heads, "bfloat16", **(rules | overrides))
    return problem, {"rotary_dim": rotary_dim} | {k: v for k, v in options.items() if k not in RULES}


def run(plan, step, **changes):
    return replace(step, **changes).run(plan)


def agree(problem, step, platform, *, atol=2e-2, **changes):
    plan = select_mixer(problem, platform, only_backend="aiter")
    reference = select_mixer(problem, platform, only_backend="reference")
    for got, expected in zip(run(plan, step, **changes), run(reference, step, **changes), strict=True):
        torch.testing.assert_close(got.float(), expected.float(), atol=atol, rtol=2e-2)
    return plan


def test_tokens_that_see_others_behind_them_are_left_to_triton(machine):
    problem, _ = of_family("gemma", sees_ahead=True)
    reasons = dict(select_mixer(problem, machine).reasons)
    assert "written for tokens that see nothing behind them" in reasons["aiter"]


@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_attends_as_the_reference_does(machine, family, requests):
    problem, options = of_family(family)
    agree(problem, make_step(problem, STEPS[requests], scattered=True, **options), machine)


@pytest.mark.parametrize("family", ["llama", "gpt-oss window"])
@pytest.mark.parametrize("queries", [2, 3, 4])
@pytest.mark.parametrize("prompts", [[], [(9, 50)]], ids=["alone", "with a prompt"])
def test_decodes_of_several_queries_see_no_later_ones(machine, family, queries, prompts):
    problem, options = of_family(family)
    step = make_step(problem, [(queries, 40), (1, 16), (queries, queries), *prompts], **options)
    geometry = replace(step.geometry, num_decodes=3, max_decode_len=queries)
    agree(problem, step, machine, geometry=geometry)


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
@pytest.mark.parametrize("requests", [DECODES, CHUNKS], ids=["decodes", "chunks"])
def test_requests_and_rows_that_pad_a_batch_change_nothing_and_give_zeros(machine, family, requests):
    problem, options = of_family(family)
    step = make_step(problem, requests, **options)
    geometry, pad = step.geometry, 3
    starts = torch.cat((geometry.query_start_loc, geometry.query_start_loc[-1:].expand(pad)))
    table = torch.cat((geometry.block_table, torch.full((pad, geometry.block_table.shape[1]), 10**6))).int()
    is_decode = requests is DECODES
    padded = replace(
        geometry,
        query_start_loc=starts,
        seq_lens=torch.cat((geometry.seq_lens, torch.zeros(pad, dtype=torch.int32))),
        block_table=table,
        slot_mapping=torch.cat((geometry.slot_mapping, torch.full((pad,), -1))),
        num_reqs=geometry.num_reqs + pad,
        num_tokens=geometry.num_tokens + pad,
        num_decodes=geometry.num_reqs + pad if is_decode else geometry.num_decodes,
    )
    noise = tuple(torch.cat((x, torch.full_like(x[:pad], 7.0))) for x in step.inputs)
    prologue = replace(step.prologue, positions=torch.cat((step.prologue.positions, torch.zeros(pad).long())))
    plan = select_mixer(problem, machine, only_backend="aiter")
    plain, *cache = run(plan, step)
    out, *padded_cache = run(plan, replace(step, geometry=padded, prologue=prologue, inputs=noise))
    torch.testing.assert_close(out[:-pad], plain, atol=1e-2, rtol=1e-2)
    assert out[-pad:].abs().max() == 0
    assert all(map(torch.equal, cache, padded_cache))


@pytest.mark.parametrize("family", ["llama", "gpt-oss window"])
def test_the_numbers_of_a_step_may_be_wider_and_lie_apart(machine, family):
    problem, options = of_family(family)
    step = make_step(problem, MIXED, **options)
    names = ("query_start_loc", "seq_lens", "slot_mapping", "block_table")
    apart = {name: torch.stack([getattr(step.geometry, name).long()] * 2, dim=-1)[..., 0] for name in names}
    agree(problem, step, machine, geometry=replace(step.geometry, **apart))


def test_the_positions_of_a_step_are_cut_to_its_tokens():
    prologue = AttentionPrologue(torch.arange(5), norm_eps=1e-6)
    assert cut_prologue(prologue, 3).positions.tolist() == [0, 1, 2]


@pytest.mark.parametrize("family", ["llama", "gpt-oss window"])
def test_steps_of_nothing_and_rows_past_a_step_give_zeros(machine, family):
    problem, options = of_family(family)
    step = make_step(problem, DECODES, **options)
    tail = tuple(torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs)
    plan = select_mixer(problem, machine, only_backend="aiter")
    out = run(plan, step, inputs=tail)[0]
    assert torch.equal(out[:3], run(plan, step)[0])
    assert out[3:].abs().max() == 0


@pytest.mark.parametrize("requests", [MIXED, CHUNKS], ids=["mixed", "chunks"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-oss window"])
def test_a_float8_cache_is_read_as_it_was_written(machine, family, requests):
    problem, options = of_family(family, kv_cache_dtype=machine.float8)
    step = make_step(problem, requests, scattered=True, **options)
    out, keys, values = run(select_mixer(problem, machine, only_backend="aiter"), step)
    q, _ = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    geometry, window = step.geometry, problem.sliding_window
    tables = (geometry.query_start_loc, geometry.seq_lens, geometry.block_table)
    cache = (keys.float(), values.float())
    expected = paged_attention(
        q, cache, *tables, scale=problem.scale, sliding_window=window, sinks_H=step.weights.get("sinks")
    )
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("requests", [MIXED, CHUNKS, DECODES], ids=["mixed", "chunks", "decodes"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_float8_cache_with_a_scale_for_each_token_and_head_is_as_the_reference_has_it(machine, family, requests):
    problem, options = of_family(family, kv_cache_dtype=machine.float8, scales="token_head")
    plan = select_mixer(problem, machine, only_backend="aiter")
    assert plan.layout.name == "shuffled_scaled"
    step = make_step(problem, requests, scattered=True, **options)
    # Scales differ from token to token.
    step.inputs[2][::2] *= 50
    out, *_ = run(plan, step)
    expected, *_ = step.run(select_mixer(problem, machine, only_backend="reference"))
    error = (out.float() - expected.float()).norm() / expected.float().norm()
    assert error < 3e-2


def test_scales_of_tokens_are_refused_where_only_the_unified_kernel_would_serve():
    problem, _ = of_family("gpt-oss window", kv_cache_dtype="float8_e4m3fnuz", scales="token_head")
    with pytest.raises(UnsupportedMixerError, match="one scale of a cache, and none of tokens"):
        select_mixer(problem, Platform.rocm("gfx942"), only_backend="aiter")


@pytest.mark.parametrize("queries", [2, 4])
def test_float8_decodes_of_several_queries_see_no_later_ones(machine, queries):
    problem, options = of_family("llama", kv_cache_dtype=machine.float8)
    step = make_step(problem, [(queries, 40), (1, 16), (queries, queries)], **options)
    step = replace(step, geometry=replace(step.geometry, num_decodes=3, max_decode_len=queries))
    out, keys, values = run(select_mixer(problem, machine, only_backend="aiter"), step)
    q, _ = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    tables = (step.geometry.query_start_loc, step.geometry.seq_lens, step.geometry.block_table)
    expected = paged_attention(q, (keys, values), *tables, scale=problem.scale)
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)


def test_keys_and_values_side_by_side_are_read_where_they_lie(machine):
    problem, options = of_family("gpt-oss window")
    step = make_step(problem, MIXED, **options)
    packed = torch.cat([x.transpose(1, 2) for x in step.caches], dim=-1)
    views = tuple(half.transpose(1, 2) for half in packed.chunk(2, dim=-1))
    tensors = tuple(replace(tensor, strides=views[0].stride()) for tensor in problem.layout.tensors)
    offered = [replace(problem.layout, name="side by side", tensors=tensors)]
    plan = select_mixer(problem, machine, offered)
    assert plan.backend == "aiter"
    expected = run(select_mixer(problem, machine, only_backend="reference"), step)
    for got, wanted in zip((step.run_in_place(plan, views), *views), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("family", ["llama", "gpt-oss window"])
def test_nothing_past_the_end_of_a_request_is_read(machine, family):
    problem, options = of_family(family)
    step = make_step(problem, [(1, 70), (5, 130), (3, 3)], **options)
    plan = select_mixer(problem, machine, only_backend="aiter")
    clean = run(plan, step)[0]
    for cache in step.caches:
        for request, length in enumerate([70, 130, 3]):
            last = int(step.geometry.block_table[request, (length - 1) // 16])
            cache[last, (length - 1) % 16 + 1 :] = float("nan")
    assert torch.equal(run(plan, step)[0], clean)


ATTENDING = {"pa_fwd_asm", "mha_batch_prefill_func", "flash_attn_varlen_func", "unified_attention"}
MIXED_NEW = [(1, 9), (20, 20)]


@pytest.mark.parametrize(
    ("family", "requests", "names"),
    [
        ("llama", DECODES, {"pa_fwd_asm"}),
        ("llama", CHUNKS, {"mha_batch_prefill_func"}),
        ("llama", WHOLE, {"flash_attn_varlen_func"}),
        ("llama", MIXED_NEW, {"pa_fwd_asm", "flash_attn_varlen_func"}),
        ("llama", MIXED, {"pa_fwd_asm", "mha_batch_prefill_func"}),
        ("gpt-oss", WHOLE, {"flash_attn_varlen_func"}),
        ("gpt-oss", MIXED_NEW, {"unified_attention"}),
        ("gpt-oss", CHUNKS, {"unified_attention"}),
    ],
)
def test_each_part_of_a_step_goes_to_the_kernel_made_for_it(family, requests, names):
    problem, options = of_family(family)
    with recorded_calls() as calls, amd_machine("gfx942", "git") as platform:
        agree(problem, make_step(problem, requests, **options), platform)
    assert calls.names & ATTENDING == names


def test_several_queries_are_decoded_by_the_assembly_where_it_has_room_for_them():
    requests = [(2, 40), (1, 16)]
    prefill = "mha_batch_prefill_func"
    for heads, queries, name in [(16, 2, "pa_fwd_asm"), (16, 3, prefill), (32, 2, prefill)]:
        problem = make_problem(heads, 2, 128, "bfloat16")
        step = make_step(problem, requests)
        step = replace(step, geometry=replace(step.geometry, num_decodes=2, max_decode_len=queries))
        with recorded_calls() as calls, amd_machine("gfx942", "git") as platform:
            agree(problem, step, platform)
        assert calls.names & ATTENDING == {name}


def planned(platform, *heads, **rules):
    return select_mixer(make_problem(*heads, "bfloat16", **rules), platform)


def test_the_assembly_is_taken_where_it_can_be_and_says_why_not_elsewhere():
    git, pypi = (Platform.rocm("gfx942", release=release) for release in ("git", "pypi"))
    assert planned(git, 32, 8, 128).layout.name == "shuffled"
    assert planned(git, 96, 8, 128).layout.name == "shuffled"
    assert planned(pypi, 32, 8, 128, kv_cache_dtype="float8_e4m3fnuz").layout.name == "shuffled_scaled"
    others = [
        planned(pypi, 32, 8, 128),
        planned(git, 64, 8, 64),
        planned(git, 32, 8, 128, has_sinks=True),
        planned(git, 32, 8, 128, sliding_window=4096),
        planned(git, 32, 8, 128, scale=0.1),
        planned(git, 32, 8, 128, block_size=32),
        planned(git, 34, 2, 128),
    ]
    assert {(plan.backend, plan.layout.name) for plan in others} == {("aiter", "nhd")}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"kv_cache_dtype": "float8_e4m3fn"}, "float8_e4m3fnuz on gfx942, not of float8_e4m3fn"),
        ({"block_size": 8}, "powers of two from 16 on, not 8 tokens"),
        ({"batch_invariant": True}, "a row's bits depend on the others"),
    ],
)
def test_what_no_kernel_of_aiter_does_is_refused_with_the_reason(rules, words):
    problem = make_problem(4, 2, 64, "bfloat16", **rules)
    with pytest.raises(UnsupportedMixerError, match=words):
        select_mixer(problem, Platform.rocm("gfx942"), only_backend="aiter")


def test_a_host_that_offers_only_rows_of_tokens_gets_them():
    problem = make_problem(32, 8, 128, "bfloat16")
    assert select_mixer(problem, Platform.rocm("gfx950"), [problem.layout]).layout.name == "nhd"
