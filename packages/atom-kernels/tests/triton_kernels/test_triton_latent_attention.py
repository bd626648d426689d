"""Latent attention in Triton agrees with its reference: decodes shared out, prompts, padding, float8."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.mla import latent_attention
from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.cases import mismatch
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.settings import triton_interpret
from padded_steps import last_is_padding

SHAPE = (6, 48, 24, 16, 20)
TOLERANCES = {"float32": Tolerance(5e-5, 5e-5), "bfloat16": Tolerance(4e-2, 4e-2)}
# Decodes around the borders of blocks and tiles; a short query; a prompt; chunks behind a prefix.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 70), (33, 33), (35, 65))
DEVICE = detect_platform().device


def make_step_here(problem, requests, **options) -> MixerStep:
    return make_step(problem, requests, **options).to(DEVICE)


def assert_agrees(problem, requests, **options):
    step = make_step_here(problem, requests, **options)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    for name, one, other in zip(("output", "latents"), got, expected, strict=True):
        assert (difference := mismatch(one.float(), other.float(), TOLERANCES[problem.dtype])) is None, (
            f"{name}: {difference}"
        )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("options", [{}, {"interleaved": False, "scattered": True}, {"prologue": False}], ids=str)
def test_a_mixed_batch_agrees(options, dtype):
    assert_agrees(make_problem(*SHAPE, dtype), MIXED, **options)


@pytest.mark.parametrize("shape", [(1, 72, 40, 2, 33), (40, 16, 8, 4, 8), (16, 512, 8, 4, 8)], ids=str)
def test_any_number_of_heads_over_latents_of_any_size(shape):
    assert_agrees(make_problem(*shape, block_size=1), [(1, 33), (1, 100), (2, 20)])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_whole_prompt_alone_is_expanded_and_agrees(dtype):
    problem = make_problem(3, 40, 24, 8, 24, dtype)
    step = make_step_here(problem, [(130, 130)], scattered=True)
    assert select_mixer(problem, only_backend="triton").build_metadata(step.geometry).whole is not None
    assert_agrees(problem, [(130, 130)], scattered=True)


def test_a_whole_prompt_alone_that_is_kept_nowhere_runs_and_writes_nothing():
    """As measuring memory runs it: one prompt as long as a step may be, and no slots yet."""
    problem = make_problem(3, 40, 24, 8, 24)
    step = make_step_here(problem, [(130, 130)])
    nowhere = replace(step.geometry, slot_mapping=torch.full_like(step.geometry.slot_mapping, -1))
    _, cache = replace(step, geometry=nowhere).run(select_mixer(problem, only_backend="triton"))
    assert torch.equal(cache, step.caches[0])


def test_padding_requests_write_nothing_and_give_zeros():
    problem = make_problem(*SHAPE)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step_here(problem, [(1, 5), (1, 300), (1, 7)], prologue=False)
    whole = step.run(plan)[0]
    out, cache = last_is_padding(step).run(plan)
    assert mismatch(out[:2], whole[:2], TOLERANCES["float32"]) is None
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    block = step.geometry.block_table[2, 0]
    assert torch.equal(cache[block], step.caches[0][block])


def test_nothing_past_the_end_of_a_request_is_read():
    problem = make_problem(*SHAPE, block_size=8)
    step = make_step_here(problem, [(1, 70), (5, 130)])
    plan = select_mixer(problem, only_backend="triton")
    clean = step.run(plan)[0]
    for request, length in enumerate([70, 130]):
        first_block = int(step.geometry.block_table[request, 0])
        step.caches[0].flatten(0, 1)[first_block * 8 + length : (first_block + -(-length // 8)) * 8] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


def relative_error(found, expected):
    return (found.float() - expected.float()).norm() / expected.float().norm()


def attended(problem, step, caches):
    """What the contract finds in `caches`."""
    geometry = step.geometry
    return latent_attention(
        apply_mla_prologue(problem, *step.inputs, step.prologue)[0],
        tuple(caches),
        step.weights["kv_b"],
        geometry.query_start_loc,
        geometry.seq_lens,
        geometry.block_table,
        v_head_dim=problem.v_head_dim,
        scale=problem.scale,
        latent_scale=step.weights.get("latent_scale"),
    )


@pytest.mark.parametrize(
    ("requests", "dtype", "scales"),
    [
        ([(1, 257), (3, 70), (20, 40)], "float32", "head"),
        ([(1, 257), (3, 70), (20, 40)], "bfloat16", "token_head"),
        ([(70, 70)], "bfloat16", "none"),
        ([(70, 70)], "bfloat16", "head"),
        ([(70, 70)], "float32", "token_head"),
    ],
    ids=str,
)
def test_latents_are_what_is_cached_times_its_scale(requests, dtype, scales):
    problem = make_problem(3, 40, 24, 8, 24, dtype, kv_cache_dtype="float8_e4m3fn", scales=scales)
    step = make_step_here(problem, requests, scattered=True)
    plan = select_mixer(problem, only_backend="triton")
    assert (plan.build_metadata(step.geometry).whole is None) == (len(requests) > 1)
    out, *caches = step.run(plan)
    assert relative_error(out, attended(problem, step, caches)) < {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    written = step.run(select_mixer(problem, only_backend="reference"))[1:]
    for one, other in zip(caches[1:], written[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if dtype == "bfloat16" else 1e-6, atol=0)
    if not triton_interpret():  # which rounds to float8 in its own way
        codes, right = (x[0].view(torch.uint8).int() for x in (caches, written))
        # Norms are summed in another order: a number that lies between two codes may become the other one.
        assert (codes != right).float().mean() < 1e-2


def test_a_float8_cache_is_read_and_written_saturated():
    problem = make_problem(*SHAPE, "bfloat16", kv_cache_dtype="float8_e4m3fn")
    step = make_step_here(problem, [(1, 40), (9, 20)], prologue=False)
    step.inputs[1][0, :2] = torch.tensor([1e4, -1e4])
    out, cache = step.run(select_mixer(problem, only_backend="triton"))
    assert mismatch(out, attended(problem, step, [cache]), TOLERANCES["bfloat16"]) is None
    assert cache.float().abs().max() == torch.finfo(cache.dtype).max


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (Platform.rocm("gfx942"), None),
        (Platform.rocm("gfx950"), None),
        (Platform.nvidia("sm_90"), None),
        (Platform.nvidia("sm_80"), "float8_e4m3fn needs an NVIDIA GPU of sm_89 or later, or gfx942 or gfx950"),
        (replace(Platform.rocm("gfx942"), arch="gfx90a"), "sm_89 or later, or gfx942 or gfx950, this is gfx90a"),
    ],
    ids=lambda value: getattr(value, "arch", ""),
)
def test_each_gpu_caches_latents_in_the_float8_of_its_own_and_no_other(platform, reason):
    problem = make_problem(*SHAPE, "bfloat16", kv_cache_dtype=platform.float8)
    other = {"float8_e4m3fn": "float8_e4m3fnuz"}.get(platform.float8, "float8_e4m3fn")
    with pytest.raises(UnsupportedMixerError, match=f"reads a cache of bfloat16 or {platform.float8}, not of {other}"):
        select_mixer(replace(problem, cache=CacheFormat(other)), platform, only_backend="triton")
    if reason is None:
        assert select_mixer(problem, platform, only_backend="triton").backend == "triton"
    else:
        with pytest.raises(UnsupportedMixerError, match=reason):
            select_mixer(problem, platform, only_backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kv_cache_dtype", "scales"),
    [("bfloat16", "none"), ("float8_e4m3fn", "none"), ("float8_e4m3fn", "head"), ("float8_e4m3fn", "token_head")],
)
@pytest.mark.parametrize("shape", [(16, 512, 128, 64, 128), (20, 512, 192, 64, 256), (128, 512, 128, 64, 128)], ids=str)
def test_shapes_of_real_models_agree_on_a_gpu(shape, kv_cache_dtype, scales):
    problem = make_problem(*shape, "bfloat16", kv_cache_dtype=kv_cache_dtype, scales=scales)
    requests = [*[(1, 1 + 97 * i) for i in range(20)], (1, 9000), (500, 500), (130, 1300), (2, 77)]
    step = make_step_here(problem, requests, scattered=True, prologue=kv_cache_dtype == "bfloat16")
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    assert relative_error(got[0], expected[0]) < 1e-2
