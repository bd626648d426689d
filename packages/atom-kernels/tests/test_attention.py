"""What attention over pages must give, and must refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention import AttentionProblem, paged_attention
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import PAGED_ATTENTION, make_problem
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.native import native_unavailable
from atom_kernels.protocols import CacheLayout

BACKENDS = [name for name in ("native", "torch") if name != "native" or native_unavailable() is None]
every_backend = pytest.mark.parametrize("backend", [*BACKENDS, "reference"])


def attend(problem, requests, backend, **options):
    return make_step(problem, requests, **options).run(select_mixer(problem, only_backend=backend))[0]


def test_the_reference_is_softmax_attention_over_the_tokens_so_far():
    problem = make_problem(4, 2, 16)
    step = make_step(problem, [(6, 6)])
    out = step.run(select_mixer(problem, only_backend="reference"))[0]
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in step.inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, expected[0].transpose(0, 1), atol=1e-6, rtol=1e-5)


def test_a_window_of_one_token_sees_only_itself():
    problem = make_problem(2, 2, 16, sliding_window=1)
    step = make_step(problem, [(5, 5)])
    for backend in [*BACKENDS, "reference"]:
        out = step.run(select_mixer(problem, only_backend=backend))[0]
        torch.testing.assert_close(out, step.inputs[2])


@pytest.mark.parametrize("backend", [name for name in (*BACKENDS, "reference") if name != "torch"])
@pytest.mark.parametrize("window", [None, 9])
def test_tokens_of_pictures_see_all_of_theirs_and_a_window_bounds_what_lies_before(backend, window):
    """Across a border of segments, behind cached tokens, and beside a prompt without a picture."""
    problem = make_problem(4, 2, 16, sees_ahead=True, sliding_window=window)
    step = make_step(problem, [(1, 300), (100, 300), (5, 5)])
    out = step.run(select_mixer(problem, only_backend=backend))[0]
    assert step.geometry.sees_until is not None
    until = step.geometry.sees_until[1:101]
    assert set(until.tolist()) == {-1, 232, 297}
    positions, keys = torch.arange(200, 300).unsqueeze(1), torch.arange(300)
    seen = keys <= torch.maximum(positions, until.unsqueeze(1))
    if window is not None:
        seen &= keys > positions - window
    q = step.inputs[0][1:101]
    table, block_size = step.geometry.block_table[1, : -(-300 // 16)].long(), 16
    _, *caches = step.run(select_mixer(problem, only_backend="reference"))
    k, v = (cache[table].view(len(table) * block_size, 2, 16)[:300] for cache in caches)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=seen, enable_gqa=True
    )
    torch.testing.assert_close(out[1:101], expected.transpose(0, 1), atol=2e-5, rtol=2e-5)
    alone = replace(step, geometry=replace(step.geometry, sees_until=None)).run(
        select_mixer(problem, only_backend=backend)
    )[0]
    assert torch.equal(alone[[0, *range(101, 106)]], out[[0, *range(101, 106)]])
    assert not torch.allclose(alone[2:99], out[2:99], atol=1e-2)


def test_a_huge_sink_takes_all_of_the_weight():
    problem = make_problem(2, 1, 16, has_sinks=True)
    step = make_step(problem, [(3, 40)])
    step = replace(step, weights={"sinks": torch.full((2,), 1e4)})
    for backend in [*BACKENDS, "reference"]:
        out = step.run(select_mixer(problem, only_backend=backend))[0]
        assert out.abs().max() == 0


def test_a_soft_cap_bounds_the_scores():
    problem = make_problem(1, 1, 16, soft_cap=1e-6, scale=1e3)
    step = make_step(problem, [(1, 50)])
    for backend in [*BACKENDS, "reference"]:
        out, _, v_cache = step.run(select_mixer(problem, only_backend=backend))
        mean = v_cache.flatten(0, 1)[:50].mean(dim=0)
        torch.testing.assert_close(out[0], mean, atol=1e-4, rtol=1e-4)


@every_backend
def test_rows_of_no_request_are_zeros(backend):
    problem = make_problem(2, 1, 16)
    step = make_step(problem, [(1, 5), (2, 7)])
    plan = select_mixer(problem, only_backend=backend)
    q, k, v = (torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs)
    out = plan.forward((q, k, v), tuple(c.clone() for c in step.caches), plan.build_metadata(step.geometry))
    assert torch.equal(out[:3], step.run(plan)[0])
    assert out[3:].abs().max() == 0


@every_backend
@pytest.mark.parametrize("window", [None, 20])
def test_nothing_past_the_end_of_a_request_or_before_its_window_is_read(backend, window):
    problem = make_problem(3, 1, 16, sliding_window=window, block_size=8)
    step = make_step(problem, [(1, 70), (5, 130)])
    clean = step.run(select_mixer(problem, only_backend=backend))[0]
    for cache in step.caches:
        for request, length in enumerate([70, 130]):
            flat = cache.flatten(0, 1)
            first_block = int(step.geometry.block_table[request, 0])
            flat[first_block * 8 + length : (first_block + -(-length // 8)) * 8] = float("nan")
    if window and backend != "reference":
        # Blocks that the window has left may be gone: their entries say so.
        step.geometry.block_table[0, : (70 - window) // 8] = 10**6
        step.geometry.block_table[1, : (126 - window) // 8] = 10**6
    assert torch.equal(step.run(select_mixer(problem, only_backend=backend))[0], clean)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_query_heads_shares_a_key_head(backend, group):
    problem = make_problem(2 * group, 2, 32)
    requests = [(1, 33), (2, 300), (9, 9)]
    torch.testing.assert_close(
        attend(problem, requests, backend), attend(problem, requests, "reference"), atol=2e-5, rtol=2e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 32])
def test_the_fused_prologue_equals_norm_then_rotation(backend, interleaved, rotary_dim):
    problem = make_problem(4, 2, 32)
    options = {"interleaved": interleaved, "rotary_dim": rotary_dim, "norms": True}
    step = make_step(problem, [(1, 33), (9, 40)], **options)
    expected = step.run(select_mixer(problem, only_backend="reference"))
    for got, want in zip(step.run(select_mixer(problem, only_backend=backend)), expected, strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_a_float8_cache_of_another_kind_is_served_by_the_reference():
    problem = make_problem(4, 2, 32, kv_cache_dtype="float8_e4m3fnuz")
    plan = select_mixer(problem)
    assert plan.backend == "reference"
    assert {name for name, _ in plan.reasons} == {"aiter", "triton", "native", "torch"}
    out, k_cache, _ = make_step(problem, [(4, 20)]).run(plan)
    exact = attend(make_problem(4, 2, 32), [(4, 20)], "reference")
    assert k_cache.dtype is torch.float8_e4m3fnuz
    assert (out - exact).abs().max() < 0.2


def test_the_layout_is_tokens_by_heads_and_says_its_bytes():
    layout = select_mixer(make_problem(4, 2, 32, "bfloat16")).layout
    assert [tensor.shape for tensor in layout.tensors] == [(16, 2, 32), (16, 2, 32)]
    assert layout.block_bytes == 2 * 16 * 2 * 32 * 2
    assert [tuple(cache.shape) for cache in layout.allocate(5)] == [(5, 16, 2, 32)] * 2


def test_a_host_that_offers_only_another_layout_is_told_what_is_needed():
    problem = make_problem(4, 2, 32)
    with pytest.raises(UnsupportedMixerError, match="needs the cache layout nhd of 16 tokens.*offers paged of 8"):
        select_mixer(problem, offered=[CacheLayout("paged", 8, ())])


def test_a_step_has_a_rotation_for_each_of_its_positions():
    problem = make_problem(2, 1, 16)
    for length, num_positions in ((5, 1024), (2000, 2000)):
        prologue = make_step(problem, [(1, length)], rotary_dim=16).prologue
        assert prologue.cos_sin_cache.shape == (num_positions, 16)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({}, "4/2 heads of 16, float32, blocks of 8"),
        ({"sliding_window": 37}, "4/2 heads of 16, float32, blocks of 8, window 37"),
        ({"soft_cap": 5.0}, "4/2 heads of 16, float32, blocks of 8, soft cap 5.0"),
        ({"has_sinks": True}, "4/2 heads of 16, float32, blocks of 8, sinks"),
        (
            {"sliding_window": 1, "soft_cap": 0.5, "has_sinks": True},
            "4/2 heads of 16, float32, blocks of 8, window 1, soft cap 0.5, sinks",
        ),
    ],
)
def test_a_problem_is_described_with_all_of_its_rules(rules, text):
    assert PAGED_ATTENTION.describe(make_problem(4, 2, 16, block_size=8, **rules)) == text


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedMixerError, match="'cuda' is not one of aiter, triton, native, torch, reference"):
        select_mixer(make_problem(4, 2, 32), only_backend="cuda")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"num_heads": 5}, "num_heads 5 is not a multiple of num_kv_heads 2"),
        ({"head_dim": 0}, "head_dim is 0; it must be at least 1"),
        ({"dtype": "float64"}, "dtype is 'float64'; give one of"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"soft_cap": -1.0}, "soft_cap is -1.0"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(overrides, words):
    values = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scale": 1.0, "dtype": "float32"}
    with pytest.raises(ValueError, match=words):
        AttentionProblem(**(values | {"cache": CacheFormat("float32"), "block_size": 4} | overrides))


def test_the_contract_can_be_called_without_a_plan():
    problem = make_problem(2, 1, 16)
    step = make_step(problem, [(2, 6)])
    out, *kv_cache = step.run(select_mixer(problem, only_backend="reference"))
    geometry = step.geometry
    again = paged_attention(
        step.inputs[0], tuple(kv_cache), geometry.query_start_loc, geometry.seq_lens, geometry.block_table, scale=0.25
    )
    assert torch.equal(again, out)


def test_the_work_of_attention_is_two_products_for_every_visible_key():
    problem = make_problem(4, 2, 16)
    # A query at the end of five keys, and three that see one, two and three.
    work = problem.work([(1, 5), (3, 3)])
    assert work.flops == 2 * 2 * (5 + 1 + 2 + 3) * 4 * 16
    assert work.num_bytes == 4 * (2 * 8 * 2 * 16 + 2 * 4 * 4 * 16)
