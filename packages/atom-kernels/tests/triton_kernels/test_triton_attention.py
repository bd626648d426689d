"""Attention in Triton agrees with its reference: every rule, page borders, windows, sinks, drafts, float8."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from atom_kernels.attention import paged_attention
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.attention.triton import launch as triton_launch
from atom_kernels.attention.triton import words
from atom_kernels.attention.triton.prologue import saturated
from atom_kernels.cases import mismatch
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch, launches_go_to
from gpu_assembly import run_assembly

TOLERANCES = {"float32": Tolerance(2e-5, 2e-5), "bfloat16": Tolerance(2e-2, 2e-2)}
# Decodes around the borders of blocks, tiles and splits; a short query; a prompt; chunks behind a prefix.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 70), (33, 33), (35, 65))
DEVICE = detect_platform().device


def make_step_here(problem, requests, **options) -> MixerStep:
    return make_step(problem, requests, **options).to(DEVICE)


def assert_agrees(problem, requests, **options):
    step = make_step_here(problem, requests, **options)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    for name, one, other in zip(("output", "keys", "values"), got, expected, strict=True):
        assert (problem_found := mismatch(one.float(), other.float(), TOLERANCES[problem.dtype])) is None, (
            f"{name}: {problem_found}"
        )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"sliding_window": 20, "has_sinks": True, "block_size": 1},
        {"soft_cap": 5.0, "block_size": 32},
        {"sliding_window": 1},
        {"has_sinks": True, "soft_cap": 20.0, "sliding_window": 100},
        {"sees_ahead": True},
        {"sees_ahead": True, "sliding_window": 20, "block_size": 32},
    ],
    ids=str,
)
def test_every_rule_agrees_in_a_mixed_batch_over_scattered_pages(rules, dtype):
    assert_agrees(make_problem(6, 2, 24, dtype, **rules), MIXED, scattered=True)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 16), (5, 1, 64), (17, 1, 8), (4, 4, 80), (6, 3, 7)]
)
def test_any_number_of_heads_of_any_size(num_heads, num_kv_heads, head_dim):
    assert_agrees(make_problem(num_heads, num_kv_heads, head_dim), [(1, 33), (2, 20), (9, 9)])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 8, 24])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_norm_and_rotation_are_rounded_as_separate_operators_round(dtype, norms, rotary_dim, interleaved):
    problem = make_problem(5, 1, 24, dtype)
    assert_agrees(problem, [(1, 7), (4, 4)], rotary_dim=rotary_dim, norms=norms, interleaved=interleaved)


def test_a_float8_cache_is_read_and_written_saturated():
    problem = make_problem(4, 2, 32, "bfloat16", kv_cache_dtype="float8_e4m3fn")
    step = make_step_here(problem, [(1, 40), (20, 20)])
    step = replace(step, inputs=(*step.inputs[:2], step.inputs[2] * 300))
    out, *kv_cache = step.run(select_mixer(problem, only_backend="triton"))
    assert mismatch(out, attended(problem, step, kv_cache), Tolerance(3.0, 2e-2)) is None
    assert kv_cache[1].float().abs().max() == torch.finfo(kv_cache[1].dtype).max
    if triton_interpret():
        return  # the interpreter rounds to float8 in its own way: a carry out of the mantissa is lost
    written = select_mixer(problem, only_backend="reference")
    for one, other in zip(kv_cache, step.run(written)[1:], strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def attended(problem, step, caches):
    """What the contract finds in `caches`."""
    geometry, weights = step.geometry, step.weights
    return paged_attention(
        apply_prologue(*step.inputs[:2], step.prologue)[0],
        tuple(caches),
        geometry.query_start_loc,
        geometry.seq_lens,
        geometry.block_table,
        scale=problem.scale,
        sliding_window=problem.sliding_window,
        sinks_H=weights.get("sinks"),
        soft_cap=problem.soft_cap,
        head_scales=[weights["key_scale"], weights["value_scale"]] if "key_scale" in weights else None,
    )


def relative_error(found, expected):
    return (found.float() - expected.float()).norm() / expected.float().norm()


every_kind_of_scale = pytest.mark.parametrize("scales", ["head", "token_head"])


@pytest.mark.parametrize(
    ("shape", "dtype", "scales", "rules"),
    [
        ((6, 2, 24), "float32", "head", {}),
        ((6, 2, 24), "bfloat16", "token_head", {}),
        ((4, 4, 16), "bfloat16", "head", {"sliding_window": 20, "has_sinks": True, "soft_cap": 5.0, "block_size": 32}),
        ((4, 4, 40), "bfloat16", "head", {"sliding_window": 20, "has_sinks": True, "soft_cap": 5.0, "block_size": 32}),
        ((4, 4, 16), "float32", "token_head", {"sliding_window": 20, "has_sinks": True, "soft_cap": 5.0}),
        ((17, 1, 64), "float32", "head", {"batch_invariant": True}),
    ],
    ids=str,
)
def test_scores_and_values_are_those_of_the_scaled_numbers(shape, dtype, scales, rules):
    problem = make_problem(*shape, dtype, kv_cache_dtype="float8_e4m3fn", scales=scales, **rules)
    step = make_step_here(problem, [(1, 65), (1, 300), (3, 70), (20, 40)], scattered=True)
    out, *caches = step.run(select_mixer(problem, only_backend="triton"))
    assert relative_error(out, attended(problem, step, caches)) < {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    written = step.run(select_mixer(problem, only_backend="reference"))[1:]
    for one, other in zip(caches[2:], written[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    if triton_interpret():
        return  # see below
    for one, other in zip(caches, written, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize(("head_dim", "dtype"), [(16, "float16"), (32, "float16"), (32, "bfloat16")])
def test_no_value_of_a_long_request_is_lost_in_half_precision(head_dim, dtype):
    """A weight times the scale of a small value is less than half precision holds."""
    problem = make_problem(1, 1, head_dim, dtype, kv_cache_dtype="float8_e4m3fn", scales="token_head")
    step = make_step_here(problem, [(1, 900)])
    k_cache, v_cache, k_scale, v_scale = step.caches
    v_scale.fill_(2.0**-16)
    step = replace(step, inputs=(step.inputs[0], step.inputs[1], step.inputs[2] * 2.0**-8))
    caches = (torch.zeros_like(k_cache), torch.full_like(v_cache, 256.0), k_scale, v_scale)
    out, *caches = replace(step, caches=caches).run(select_mixer(problem, only_backend="triton"))
    assert mismatch(out, attended(problem, step, caches), Tolerance(0, 4e-3)) is None


def test_instructions_of_a_gpu_make_two_numbers_of_each_word():
    """The interpreter has no assembly: its words are run here."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    for first in range(0, 256, 4):
        # Two columns of one key and two of the next.
        word = int.from_bytes(range(first, first + 4), "little")
        found = run_assembly(words._PAIRS.value, {"$2": word})
        for register, expected in (("$0", [first, first + 2]), ("$1", [first + 1, first + 3])):
            halves = torch.tensor([found[register] & 0xFFFF, found[register] >> 16], dtype=torch.int32)
            made = halves.to(torch.int16).view(torch.float16).float()
            torch.testing.assert_close(made, numbers[expected], rtol=0, atol=0, equal_nan=True)


def test_many_keys_of_little_weight_are_not_lost_beside_one_of_all_weight():
    """Each of them has less than half precision holds, and the one has a value of zero."""
    problem = make_problem(1, 1, 32, "bfloat16", kv_cache_dtype="float8_e4m3fn")
    step = make_step_here(problem, [(1, 900)])
    q, k, v = (torch.zeros_like(x) for x in step.inputs)
    k_cache, v_cache = torch.zeros_like(step.caches[0]), torch.full_like(step.caches[1], 256.0)
    at = step.geometry.block_table[0, 0]
    q[0, 0, 0], k_cache[at, 3, 0, 0], v_cache[at, 3] = 4.0, 26.0, 0.0
    step = replace(step, inputs=(q, k, v), caches=(k_cache, v_cache))
    out, *caches = step.run(select_mixer(problem, only_backend="triton"))
    assert relative_error(out, attended(problem, step, caches)) < 1e-2


@pytest.mark.parametrize("scales", ["none", "head", "token_head"])
def test_queries_and_values_of_any_size_meet_a_float8_cache(scales):
    """Decodes multiply in half precision, whose largest number is 65504: bfloat16 has more below it and above it."""
    problem = make_problem(4, 2, 32, "bfloat16", kv_cache_dtype="float8_e4m3fn", scales=scales)
    step = make_step_here(problem, [(1, 200), (2, 90)])
    q, k, v = step.inputs
    step = replace(step, inputs=(q * torch.tensor([2.0**40, 2.0**-40, 1.0])[:, None, None].to(q), k, v))
    sizes = torch.logspace(-20, 25, step.caches[1].flatten(0, 1).shape[0], base=2.0)
    if scales == "token_head":
        step.caches[3].flatten(0, 1).copy_(sizes.to(step.caches[3].device)[:, None])
    out, *caches = step.run(select_mixer(problem, only_backend="triton"))
    assert relative_error(out, attended(problem, step, caches)) < 1e-2


@every_kind_of_scale
def test_nothing_past_the_end_of_a_scaled_request_is_read(scales):
    problem = make_problem(4, 2, 16, kv_cache_dtype="float8_e4m3fn", scales=scales, block_size=8)
    step = make_step_here(problem, [(1, 70), (5, 130)])
    plan = select_mixer(problem, only_backend="triton")
    clean = step.run(plan)[0]
    for request, length in enumerate([70, 130]):
        first_block = int(step.geometry.block_table[request, 0])
        for cache in step.caches:
            behind = cache.flatten(0, 1)[first_block * 8 + length : (first_block + -(-length // 8)) * 8]
            behind.view(torch.uint8).fill_(0x7F)  # no number, in float8 as in float32
    assert torch.equal(step.run(plan)[0], clean)


@triton.jit
def _saturate(x_ptr, out_ptr, LARGEST: tl.constexpr):
    at = tl.arange(0, 8)
    tl.store(out_ptr + at, saturated(tl.load(x_ptr + at), LARGEST))


@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e4m3fnuz], ids=str)
def test_what_goes_into_float8_is_within_its_numbers_and_no_zero_of_amds_is_negative(float8):
    x = torch.tensor([1e4, -1e4, 239.0, -0.0, -1e-5, -(2.0**-11), -(2.0**-10), 2.0**-10], device=DEVICE)
    out = torch.empty_like(x)
    launch(_saturate, (1,), x, out, LARGEST=torch.finfo(float8).max)
    expected = x.clamp(-torch.finfo(float8).max, torch.finfo(float8).max)
    if float8 is torch.float8_e4m3fnuz:
        expected[3:6] = 0.0
        assert not out[3:6].signbit().any()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("lengths", "apart"),
    [
        *itertools.product([[3], [700, 1, 1, 33, 64, 65, 500]], [False, True]),
        ([1000], True),
        ([5, 900, 2], False),
        ([1] * 40, False),
        ([64 * 256 + 1, 300], False),
    ],
    ids=str,
)
def test_decodes_are_shared_out_whatever_their_lengths(lengths, apart):
    problem = make_problem(2, 1, 8, block_size=4, batch_invariant=apart)
    assert_agrees(problem, [(1, length) for length in lengths], scattered=True)


@pytest.mark.parametrize("rules", [{}, {"sliding_window": 40, "has_sinks": True}, {"batch_invariant": True}], ids=str)
def test_padding_requests_write_nothing_and_give_zeros(rules):
    problem = make_problem(4, 2, 16, **rules)
    step = make_step_here(problem, [(1, 5), (1, 300), (1, 7), (1, 9)])
    plan = select_mixer(problem, only_backend="triton")
    whole = step.run(plan)[0]
    geometry = step.geometry
    padded = replace(
        geometry,
        seq_lens=geometry.seq_lens * torch.tensor([1, 1, 0, 0], device=DEVICE),
        block_table=geometry.block_table * torch.tensor([[1], [1], [0], [0]], device=DEVICE),
        slot_mapping=torch.where(torch.arange(4, device=DEVICE) < 2, geometry.slot_mapping, -1),
    )
    q = step.inputs[0].clone()
    q[2:] = float("nan")
    out, *kv_cache = replace(step, inputs=(q, *step.inputs[1:]), geometry=padded).run(plan)
    assert mismatch(out[:2], whole[:2], TOLERANCES["float32"]) is None
    assert torch.equal(out[2:], torch.zeros_like(out[2:]))
    block = step.geometry.block_table[2, 0]
    assert torch.equal(kv_cache[0][block], step.caches[0][block])


@pytest.mark.parametrize("window", [None, 40])
def test_a_padded_mixed_batch_agrees_with_the_same_requests_alone(window):
    problem = make_problem(4, 2, 16, sliding_window=window)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step_here(problem, [(1, 90), (40, 40), (9, 77)])
    geometry = step.geometry
    # Room for three decodes and four prompts in 64 tokens: absent decodes have none, an absent prompt those left.
    padded = replace(
        geometry,
        query_start_loc=torch.tensor([0, 1, 1, 1, 41, 50, 64, 64], dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor([90, 0, 0, 40, 77, 0, 0], dtype=torch.int32, device=DEVICE),
        block_table=geometry.block_table[[0, 0, 0, 1, 2, 0, 0]],
        slot_mapping=torch.cat((geometry.slot_mapping, geometry.slot_mapping.new_full((14,), -1))),
        num_reqs=7,
        num_tokens=64,
        num_decodes=3,
        max_query_len=64,
    )
    q, k, v = (torch.cat((x, torch.full_like(x[:14], float("nan")))) for x in step.inputs)
    out, *kv_cache = replace(step, inputs=(q, k, v), geometry=padded).run(plan)
    expected, *expected_cache = step.run(plan)
    assert mismatch(out[:50], expected, TOLERANCES["float32"]) is None
    assert torch.equal(out[50:], torch.zeros_like(out[50:]))
    assert all(torch.equal(one, other) for one, other in zip(kv_cache, expected_cache, strict=True))


def test_a_step_may_have_more_prompts_than_are_looked_at_together(monkeypatch):
    monkeypatch.setattr(triton_launch, "_REQUESTS_AT_ONCE", 16)
    assert_agrees(make_problem(2, 1, 8, block_size=4), [(1, 5), *[(2, 9), (3, 3)] * 18])


def test_no_number_of_prompts_makes_triton_compile_again():
    """Only the problem decides the constants of a kernel: compiling amid a load holds up all that is served."""
    constants = []

    def record(kernel, grid, *tensors, **given):
        if kernel is triton_launch.prefill_kernel:
            constants.append(given)

    plan = select_mixer(make_problem(2, 1, 8), only_backend="triton")
    with launches_go_to(record):
        for requests in ([(7, 7)], [(2, 90)] * 17, [(2, 3)] * 40, [(1, 5), (50, 600)]):
            make_step_here(plan.problem, requests).run(plan)
    assert len(constants) == 4
    assert all(given == constants[0] for given in constants)


@pytest.mark.parametrize("window", [None, 20])
def test_drafts_of_a_request_are_read_over_one_pass_of_its_keys(window):
    problem = make_problem(6, 2, 16, sliding_window=window, has_sinks=True)
    step = make_step_here(problem, [(4, 200), (3, 3), (2, 97), (1, 64)])
    step = replace(step, geometry=replace(step.geometry, num_decodes=4, max_decode_len=4))
    got = step.run(select_mixer(problem, only_backend="triton"))[0]
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    assert mismatch(got, expected, TOLERANCES["float32"]) is None


def test_a_row_is_the_same_whatever_its_neighbors_where_that_is_asked_for():
    problem = make_problem(4, 2, 16, batch_invariant=True)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step_here(problem, [(1, 300), (1, 700), (1, 5)])
    together = step.run(plan)[0]
    geometry = step.geometry
    for row in range(3):
        alone = replace(
            step,
            inputs=tuple(x[row : row + 1] for x in step.inputs),
            geometry=replace(
                geometry,
                query_start_loc=geometry.query_start_loc[:2],
                seq_lens=geometry.seq_lens[row : row + 1],
                block_table=geometry.block_table[row : row + 1],
                slot_mapping=geometry.slot_mapping[row : row + 1],
                num_reqs=1,
                num_tokens=1,
                num_decodes=1,
                max_seq_len=int(geometry.seq_lens[row]),
            ),
        )
        assert torch.equal(alone.run(plan)[0][0], together[row])


def test_leading_requests_may_have_several_tokens_each():
    problem = make_problem(4, 2, 16, has_sinks=True)
    step = make_step_here(problem, [(3, 40), (1, 300), (4, 4), (20, 50)])
    step = replace(step, geometry=replace(step.geometry, num_decodes=3, max_decode_len=4))
    got = step.run(select_mixer(problem, only_backend="triton"))[0]
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    assert mismatch(got, expected, TOLERANCES["float32"]) is None


def test_slots_below_zero_write_nothing_and_rows_of_no_request_are_zeros():
    problem = make_problem(2, 1, 16)
    step = make_step_here(problem, [(1, 5), (2, 7)])
    plan = select_mixer(problem, only_backend="triton")
    whole = step.run(plan)[0]
    q, k, v = (torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs)
    out = plan.forward((q, k, v), tuple(c.clone() for c in step.caches), plan.build_metadata(step.geometry))
    assert torch.equal(out[:3], whole)
    assert out[3:].abs().max() == 0
    nowhere = torch.full_like(step.geometry.slot_mapping, -1)
    step = replace(step, geometry=replace(step.geometry, slot_mapping=nowhere))
    assert torch.equal(step.run(plan)[1], step.caches[0])


@pytest.mark.parametrize("window", [None, 20])
def test_nothing_past_the_end_of_a_request_or_before_its_window_is_read(window):
    problem = make_problem(3, 1, 16, sliding_window=window, block_size=8)
    step = make_step_here(problem, [(1, 70), (5, 130)])
    plan = select_mixer(problem, only_backend="triton")
    clean = step.run(plan)[0]
    for cache in step.caches:
        for request, length in enumerate([70, 130]):
            first_block = int(step.geometry.block_table[request, 0])
            cache.flatten(0, 1)[first_block * 8 + length : (first_block + -(-length // 8)) * 8] = float("nan")
    if window:
        # Blocks that the window has left may be gone: their entries say so.
        step.geometry.block_table[0, : (70 - window) // 8] = 10**6
        step.geometry.block_table[1, : (126 - window) // 8] = 10**6
    assert torch.equal(step.run(plan)[0], clean)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kv_cache_dtype", "scales"),
    [("bfloat16", "none"), ("float8_e4m3fn", "none"), ("float8_e4m3fn", "head"), ("float8_e4m3fn", "token_head")],
)
@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        ((16, 8, 128), {}),
        ((32, 8, 128), {"soft_cap": 30.0}),
        ((64, 8, 64), {"sliding_window": 128, "has_sinks": True}),
        ((8, 4, 256), {"sliding_window": 1024}),
        ((9, 3, 64), {}),
    ],
)
def test_shapes_of_real_models_agree_on_a_gpu(shape, rules, kv_cache_dtype, scales):
    problem = make_problem(*shape, "bfloat16", kv_cache_dtype=kv_cache_dtype, scales=scales, **rules)
    requests = [*[(1, 1 + 97 * i) for i in range(40)], (1, 9000), (1000, 1000), (513, 3000), (2, 77), (2048, 2100)]
    norms = kv_cache_dtype == "bfloat16"
    step = make_step_here(problem, requests, scattered=True, rotary_dim=None if rules else shape[2], norms=norms)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    assert mismatch(got[0], expected[0], Tolerance(2e-2, 2e-2)) is None
    assert relative_error(got[0], expected[0]) < 5e-3
