"""Latent attention through AITER against the reference: DeepSeek, Kimi and GLM, decodes, chunks, prompts, padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.platform import Platform

# Heads of a rank, kv_lora_rank, nope, rope, v_head_dim.
FAMILIES = {
    "deepseek-v2-lite": (16, 512, 128, 64, 128),
    "kimi on 8": (8, 512, 32, 64, 24),
    "glm flash": (20, 512, 48, 64, 40),
    "deepseek-v3": (128, 512, 16, 64, 8),
}
MIXED = [(1, 1), (1, 16), (1, 70), (20, 20), (33, 60), (17, 65)]
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


def agree(problem, step, platform, **tolerances):
    plan, reference = (select_mixer(problem, platform, only_backend=name) for name in ("aiter", "reference"))
    for got, expected in zip(step.run(plan), step.run(reference), strict=True):
        torch.testing.assert_close(got.float(), expected.float(), **({"atol": 3e-2, "rtol": 3e-2} | tolerances))


def relative_error(problem, step, platform):
    """What outputs may differ by: float8 caches hold the same codes but for those that a last bit moved."""
    plan, reference = (select_mixer(problem, platform, only_backend=name) for name in ("aiter", "reference"))
    (out, cache), (expected, expected_cache) = step.run(plan), step.run(reference)
    differing = (cache.view(torch.uint8) != expected_cache.view(torch.uint8)).float().mean()
    assert differing < 5e-3
    return (out.float() - expected.float()).norm() / expected.float().norm()


@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_attends_as_the_reference_does(machine, family, requests):
    # The release on PyPI does not have so many heads, see the last test.
    is_too_large = family == "deepseek-v3" and machine.aiter.release == "pypi"
    problem = make_problem(*((112,) if is_too_large else FAMILIES[family][:1]), *FAMILIES[family][1:], "bfloat16")
    step = make_step(problem, STEPS[requests], scattered=True)
    # Large, so that a test cannot miss it.
    agree(problem, replace(step, prologue=replace(step.prologue, norm_eps=0.5)), machine)


@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize("options", [{"prologue": False}, {"interleaved": False}], ids=str)
def test_without_a_prologue_and_with_halves_as_pairs(machine, requests, options):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16", block_size=4)
    agree(problem, make_step(problem, STEPS[requests], **options), machine)


@pytest.mark.parametrize("family", ["kimi on 8", "glm flash"])
@pytest.mark.parametrize("queries", [2, 3, 4])
@pytest.mark.parametrize("prompts", [[], [(9, 50)]], ids=["alone", "with a prompt"])
def test_decodes_of_several_queries_see_no_later_ones(machine, family, queries, prompts):
    problem = make_problem(*FAMILIES[family], "bfloat16")
    step = make_step(problem, [(queries, 40), (1, 16), (queries, queries), *prompts])
    geometry = replace(step.geometry, num_decodes=3, max_decode_len=queries)
    agree(problem, replace(step, geometry=geometry), machine)


@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize("scales", ["none", "head"])
@pytest.mark.parametrize("family", ["kimi on 8", "glm flash", "deepseek-v3"])
def test_latents_in_float8_are_written_and_read_as_the_reference_does(machine, family, scales, requests):
    heads, *shape = FAMILIES[family]
    heads = min(heads, 112) if machine.aiter.release == "pypi" else heads
    problem = make_problem(heads, *shape, "bfloat16", kv_cache_dtype=machine.float8, scales=scales)
    step = make_step(problem, STEPS[requests], scattered=True)
    if scales == "head":
        step.weights["latent_scale"].fill_(1.75)
    assert relative_error(problem, step, machine) < 2e-2


@pytest.mark.parametrize("requests", ["decodes", "chunks", "new"])
def test_float8_latents_too_large_for_it_are_its_largest_number(machine, requests):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16", kv_cache_dtype=machine.float8)
    step = make_step(problem, STEPS[requests], prologue=False)
    # Those of the first request, and of the last, which is a new prompt in one of the steps.
    step.inputs[1][[0, -3]] *= 1000
    assert relative_error(problem, step, machine) < 2e-2


@pytest.mark.parametrize("queries", [1, 4])
def test_float8_decodes_go_by_the_kernel_of_decodes_and_prompts_over_a_copy(machine, queries):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16", kv_cache_dtype=machine.float8)
    step = make_step(problem, [(queries, 40), (queries, 90)])
    step = replace(step, geometry=replace(step.geometry, num_decodes=2, max_decode_len=queries))
    plan = select_mixer(problem, machine, only_backend="aiter")
    metadata = plan.build_metadata(step.geometry)
    assert metadata.decodes is not None
    assert metadata.split.pages is None
    assert plan.capturable
    assert not plan.captures_prompts
    assert relative_error(problem, step, machine) < 2e-2


@pytest.mark.parametrize("requests", ["decodes", "chunks"])
def test_requests_and_rows_that_pad_a_batch_change_nothing_and_give_zeros(machine, requests):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16")
    step = make_step(problem, STEPS[requests])
    geometry, pad = step.geometry, 3
    padded = replace(
        geometry,
        query_start_loc=torch.cat((geometry.query_start_loc, geometry.query_start_loc[-1:].expand(pad))),
        seq_lens=torch.cat((geometry.seq_lens, torch.zeros(pad, dtype=torch.int32))),
        block_table=torch.cat(
            (geometry.block_table, torch.full((pad, geometry.block_table.shape[1]), 10**6, dtype=torch.int32))
        ),
        slot_mapping=torch.cat((geometry.slot_mapping, torch.full((pad,), -1))),
        num_reqs=geometry.num_reqs + pad,
        num_tokens=geometry.num_tokens + pad,
        num_decodes=geometry.num_reqs + pad if requests == "decodes" else geometry.num_decodes,
    )
    noisy = replace(
        step,
        inputs=tuple(torch.cat((x, torch.full_like(x[:pad], 7.0))) for x in step.inputs),
        geometry=padded,
        prologue=replace(step.prologue, positions=torch.cat((step.prologue.positions, torch.zeros(pad).long()))),
    )
    plan = select_mixer(problem, machine, only_backend="aiter")
    (plain, cache), (out, padded_cache) = step.run(plan), noisy.run(plan)
    torch.testing.assert_close(out[:-pad], plain, atol=1e-2, rtol=1e-2)
    assert out[-pad:].abs().max() == 0
    assert torch.equal(cache, padded_cache)


@pytest.mark.parametrize("requests", ["mixed", "new"])
def test_the_numbers_of_a_step_may_be_wider_and_lie_apart(machine, requests):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16")
    step = make_step(problem, STEPS[requests])
    names = ("query_start_loc", "seq_lens", "slot_mapping", "block_table")
    geometry = replace(step.geometry, **{name: apart(getattr(step.geometry, name)) for name in names})
    prologue = replace(step.prologue, positions=apart(step.prologue.positions))
    agree(problem, replace(step, geometry=geometry, prologue=prologue), machine)


def apart(numbers):
    return torch.stack([numbers.long(), torch.full_like(numbers, 7).long()], dim=-1)[..., 0]


def test_a_token_of_no_slot_is_not_written_and_its_query_sees_what_is_there(machine):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16")
    step = make_step(problem, [(1, 17), (5, 40)])
    step.geometry.slot_mapping[[0, 3]] = -1
    agree(problem, step, machine)


def test_a_second_step_of_the_same_size_writes_the_same_buffers(machine):
    problem = make_problem(*FAMILIES["kimi on 8"], "bfloat16")
    plan = select_mixer(problem, machine, only_backend="aiter")
    first, second = make_step(problem, DECODES), make_step(problem, [(1, 90), (1, 2), (1, 33)], seed=1)
    made = plan.build_metadata(first.geometry).decodes.buffers
    kept = {name: buffer.data_ptr() for name, buffer in made.items()}
    made = plan.build_metadata(second.geometry).decodes.buffers
    assert {name: buffer.data_ptr() for name, buffer in made.items()} == kept
    expected = second.run(select_mixer(problem, machine, only_backend="reference"))[0]
    torch.testing.assert_close(second.run(plan)[0], expected, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"dtype": "float32", "cache": CacheFormat("float32")}, "in bfloat16, not in float32"),
        ({"cache": CacheFormat("float8_e4m3fn")}, "or in float8_e4m3fnuz on gfx942, not in float8_e4m3fn"),
        ({"cache": CacheFormat("float8_e4m3fnuz", "token_head")}, "scales none or head, not with scales token_head"),
        ({"kv_lora_rank": 256}, "512 \\+ 64 elements, not 256 \\+ 64"),
        ({"num_heads": 144}, "up to 128 heads, not 144"),
    ],
)
def test_what_no_kernel_of_aiter_does_is_refused_with_the_reason(overrides, words):
    problem = replace(make_problem(*FAMILIES["kimi on 8"], "bfloat16"), **overrides)
    with pytest.raises(UnsupportedMixerError, match=words):
        select_mixer(problem, Platform.rocm("gfx942"), only_backend="aiter")


def test_the_release_on_pypi_does_not_have_128_heads():
    problem = make_problem(*FAMILIES["deepseek-v3"], "bfloat16")
    assert select_mixer(problem, Platform.rocm("gfx942", release="git")).backend == "aiter"
    with pytest.raises(UnsupportedMixerError, match="takes up to 112 heads, not 128"):
        select_mixer(problem, Platform.rocm("gfx942", release="pypi"), only_backend="aiter")
