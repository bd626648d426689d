"""What AITER writes into a cache, and the queries that it gives, against the reference: every layout, kind and path."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.aiter.attention import layouts
from atom_kernels.aiter.attention.cache_write import CacheWriter, NewTokens
from atom_kernels.attention import apply_prologue, write_cache
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem

FUSION = "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION"
REQUESTS = [(1, 17), (3, 40), (20, 20)]
LAYOUTS = {"nhd": lambda problem: problem.layout, "shuffled": layouts.shuffled_layout}
# Heads, key heads, head_dim: Llama 3, GLM 4 with its rotation of half a head, GPT-OSS, an odd one.
SHAPES = {"llama": (8, 2, 128, 128), "glm": (16, 1, 128, 64), "gpt-oss": (8, 1, 64, 64), "odd": (6, 2, 96, 96)}
MACHINES = [("gfx942", "git"), ("gfx950", "pypi")]


@pytest.fixture(params=MACHINES, ids="-".join)
def machine(request):
    with amd_machine(*request.param) as platform:
        yield platform


def written(problem, layout, step, *, slots=None):
    """What AITER leaves in a cache of noise, in NHD, and its queries and keys; and the same by the reference."""
    slots = step.geometry.slot_mapping if slots is None else slots
    cache = tuple(x.clone() for x in layouts.from_nhd(layout, *step.caches))
    given = NewTokens(*step.inputs, slots)
    kept = [x.clone() for x in step.inputs]
    tokens = CacheWriter(problem, layout).write(given, cache, step.prologue)
    assert all(map(torch.equal, kept, step.inputs))
    expected = tuple(x.clone() for x in step.caches)
    q, k = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    write_cache(expected, (k, step.inputs[2]), slots)
    return (tokens.q, *layouts.restore_nhd(layout, cache)), (q, *expected)


def close(got, expected, **tolerances):
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), **tolerances)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_family_writes_what_the_reference_does(machine, layout, norms, shape):
    *heads, rotary_dim = SHAPES[shape]
    problem = make_problem(*heads, "bfloat16")
    options = {"rotary_dim": rotary_dim, "interleaved": shape == "glm", "norms": norms, "scattered": True}
    step = make_step(problem, REQUESTS, **options)
    # Large, so that a test cannot miss it.
    step = replace(step, prologue=replace(step.prologue, norm_eps=0.5))
    got, expected = written(problem, LAYOUTS[layout](problem), step)
    close(got, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_without_a_prologue_the_bytes_are_those_given(machine, layout, dtype):
    problem = make_problem(4, 2, 128, dtype)
    got, expected = written(problem, LAYOUTS[layout](problem), make_step(problem, REQUESTS, scattered=True))
    close(got, expected, atol=0, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_may_come_before_tokens(machine, layout):
    problem = make_problem(4, 2, 128, "bfloat16")
    step = make_step(problem, REQUESTS)
    k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (step.inputs[1], step.inputs[2]))
    assert not k.is_contiguous()
    got, expected = written(problem, LAYOUTS[layout](problem), replace(step, inputs=(step.inputs[0], k, v)))
    close(got, expected, atol=0, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [None, 128])
def test_tokens_of_no_slot_are_written_nowhere_and_keep_their_queries(machine, layout, rotary_dim):
    problem = make_problem(4, 2, 128, "bfloat16")
    step = make_step(problem, REQUESTS, rotary_dim=rotary_dim)
    slots = step.geometry.slot_mapping.clone()
    slots[[0, 7, 23]] = -1
    got, expected = written(problem, LAYOUTS[layout](problem), step, slots=slots)
    close(got, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("rotary_dim", [None, 64])
def test_float8_is_of_the_kind_that_the_machine_has(machine, rotary_dim):
    problem = make_problem(4, 2, 64, "bfloat16", kv_cache_dtype=machine.float8)
    step = make_step(problem, REQUESTS, rotary_dim=rotary_dim)
    got, expected = written(problem, problem.layout, step)
    close(got, expected, atol=2e-2, rtol=0.13)  # half of a last bit, and the other way of a tie


@pytest.mark.parametrize("rotary_dim", [None, 64, 128])
def test_float8_with_scales_keeps_what_large_and_small_tokens_are(machine, rotary_dim):
    problem = make_problem(4, 2, 128, "bfloat16", kv_cache_dtype=machine.float8)
    step = make_step(problem, REQUESTS, rotary_dim=rotary_dim, norms=rotary_dim is not None, scattered=True)
    q, k, v = step.inputs
    step = replace(step, inputs=(q, k, v * torch.logspace(-2, 3, len(v))[:, None, None].bfloat16()))
    layout = layouts.scaled_layout(problem)
    cache = layouts.from_nhd(layout, *step.caches)
    slots = step.geometry.slot_mapping
    CacheWriter(problem, layout).write(NewTokens(*step.inputs, slots), cache, step.prologue)
    _, k = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    for got, given in zip(layouts.restore_nhd(layout, cache), (k, step.inputs[2]), strict=True):
        largest = given.float().abs().amax(-1, keepdim=True)
        assert ((got.flatten(0, 1)[slots] - given.float()).abs() <= largest / 16).all()


@pytest.mark.parametrize("key_heads", [1, 32])
@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "float8_e4m3fnuz"])
def test_all_in_one_kernel_gives_what_the_steps_give(monkeypatch, kv_cache_dtype, key_heads):
    problem = make_problem(32, key_heads, 128, "bfloat16", kv_cache_dtype=kv_cache_dtype)
    step = make_step(problem, REQUESTS, rotary_dim=128, norms=True)
    step = replace(step, prologue=replace(step.prologue, norm_eps=0.5))
    layout = layouts.shuffled_layout(problem) if kv_cache_dtype == "bfloat16" else layouts.scaled_layout(problem)
    with amd_machine("gfx942", "git"):
        monkeypatch.setenv(FUSION, "1")
        writer = CacheWriter(problem, layout)
        cache = layouts.from_nhd(layout, *step.caches)
        given = NewTokens(*step.inputs, step.geometry.slot_mapping)
        writer.write(given, cache, step.prologue)
        assert "_norm_rope_cache" in vars(writer)
        is_exact = kv_cache_dtype == "bfloat16"
        (q, k, v), (q_expected, k_expected, v_expected) = written(problem, layout, step)
        close([q], [q_expected], atol=2e-2, rtol=2e-2)
        close([k, v], [k_expected, v_expected], atol=2e-2 if is_exact else 0.3, rtol=2e-2 if is_exact else 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"release": "pypi"},
        {"rotary_dim": 64},
        {"norms": False},
        {"value": "0"},
        {"key_heads": 6},
        {"key_heads": 64},
    ],
    ids=str,
)
def test_the_kernel_for_all_is_left_out_where_it_cannot_do_it(monkeypatch, change):
    options = {"release": "git", "rotary_dim": 128, "norms": True, "value": "1", "key_heads": 2} | change
    problem = make_problem(options["key_heads"], options["key_heads"], 128, "bfloat16")
    step = make_step(problem, REQUESTS, rotary_dim=options["rotary_dim"], norms=options["norms"])
    layout = layouts.shuffled_layout(problem)
    with amd_machine("gfx942", options["release"]):
        monkeypatch.setenv(FUSION, options["value"])
        writer = CacheWriter(problem, layout)
        given = NewTokens(*step.inputs, step.geometry.slot_mapping)
        writer.write(given, layouts.from_nhd(layout, *step.caches), step.prologue)
        assert "_norm_rope_cache" not in vars(writer)


@pytest.mark.parametrize("fused", ["0", "1"])
def test_a_large_epsilon_of_the_head_norms_is_seen(monkeypatch, fused):
    monkeypatch.setenv(FUSION, fused)
    problem = make_problem(4, 2, 128, "bfloat16")
    step = make_step(problem, REQUESTS, rotary_dim=128, norms=True)
    step = replace(step, prologue=replace(step.prologue, norm_eps=0.75))
    with amd_machine():
        got, expected = written(problem, layouts.shuffled_layout(problem), step)
    close(got, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("rotary_dim", [None, 32, 64])
def test_blocks_with_keys_and_values_side_by_side_are_written_where_they_lie(machine, rotary_dim):
    problem = make_problem(4, 2, 64, "bfloat16")
    step = make_step(problem, REQUESTS, rotary_dim=rotary_dim)
    packed = torch.cat([x.transpose(1, 2) for x in step.caches], dim=-1)
    views = tuple(half.transpose(1, 2) for half in packed.chunk(2, dim=-1))
    tensors = tuple(replace(tensor, strides=views[0].stride()) for tensor in problem.layout.tensors)
    writer = CacheWriter(problem, replace(problem.layout, name="side by side", tensors=tensors))
    writer.write(NewTokens(*step.inputs, step.geometry.slot_mapping), views, step.prologue)
    _, k = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    write_cache(step.caches, (k, step.inputs[2]), step.geometry.slot_mapping)
    close(views, step.caches, atol=2e-2, rtol=2e-2)
