"""The gated delta rule in chunks, by Triton: its numbers in float64, and bits that cuts at chunks and company leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from atom_kernels.delta import GATED_DELTA, GatedDeltaProblem
from atom_kernels.delta.triton import hopper_launch
from atom_kernels.delta.triton.backend import DELTA_BY_TRITON
from atom_kernels.delta.triton.chunked import bind_chunked, computes_chunks, scan_config
from atom_kernels.platform import Platform, detect_platform, use_platform
from atom_kernels.select import plan_with
from delta_sequences import Sequences, rule_in_float64

DEVICE = detect_platform().device
SMALL = GatedDeltaProblem(1, 1, 16, 16, torch.float16)
both_gates = pytest.mark.parametrize(
    "problem", [SMALL, replace(SMALL, channel_gates=True)], ids=["gates of heads", "gates of channels"]
)
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def sequences_of(num_rows, problem=SMALL):
    return Sequences(GATED_DELTA, problem, DELTA_BY_TRITON, num_rows)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@pytest.mark.skipif(DEVICE != "cpu", reason="products of float32 tensors are not made for a GPU")
@pytest.mark.parametrize(("num_rows", "context"), [(128, 0), (100, 23), (30, 20)], ids=["whole", "parts", "inside"])
@pytest.mark.parametrize("heads", [(1, 3), (2, 2)])
@pytest.mark.parametrize("channel_gates", [False, True])
def test_chunks_are_the_rule_in_float64(num_rows, context, heads, channel_gates):
    problem = GatedDeltaProblem(*heads, 20, 37, torch.float32, channel_gates)
    weights, (rows, out, states) = _of_one_sequence(problem, num_rows, torch.Generator().manual_seed(0))
    want, state = rule_in_float64(problem, weights, rows, states[1] if context else None)
    run = bind_chunked(problem, weights["a_log"], weights["dt_bias"])
    run(*rows, out, states, int32(1), int32([1]), int32(0, num_rows), int32(num_rows + context))
    assert (out - want).abs().max() < 2e-5
    # Decays are summed up to some hundreds, of which float32 has 2e-5: so far are differences of sums from right.
    assert (states[1] - state).abs().max() < 1e-4


@pytest.mark.skipif(DEVICE != "cpu", reason="products of float32 tensors are not made for a GPU")
def test_channels_that_forget_all_at_once_beside_ones_that_keep_all_are_the_rule_in_float64():
    """Log decays of -20 and of nothing, in turn at random: their sums over a chunk leave what exp() can tell."""
    problem, num_rows = GatedDeltaProblem(1, 2, 16, 16, torch.float32, channel_gates=True), 128
    generator = torch.Generator().manual_seed(0)
    weights, ((qkv, a, b), out, states) = _of_one_sequence(problem, num_rows, generator)
    weights = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    a = torch.where(torch.rand(a.shape, generator=generator) < 0.5, 20.0, -20.0)
    want, state = rule_in_float64(problem, weights, (qkv, a, b))
    run = bind_chunked(problem, weights["a_log"], weights["dt_bias"])
    run(qkv, a, b, out, states, int32(1), int32([1]), int32(0, num_rows), int32(num_rows))
    assert (out - want).abs().max() < 2e-5
    assert (states[1] - state).abs().max() < 1e-4


def _of_one_sequence(problem, num_rows, generator):
    weights, (*rows, out, states, _, _, _, _, _) = GATED_DELTA.make_inputs(problem, num_rows, generator)
    return weights, (rows, out, states[:2].clone())


@both_gates
@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128)])
@pytest.mark.parametrize("num_rows", [150, 133], ids=["the last chunk whole", "the last one token by token"])
def test_a_state_handed_over_at_a_multiple_of_64_leaves_no_trace(cuts, num_rows, problem):
    whole, cut = (sequences_of(num_rows, problem) for _ in range(2))
    want = whole.run((2, 0, num_rows, 0))
    got = [cut.run((2, first, end, first)) for first, end in pairwise((0, *cuts, num_rows))]
    assert torch.equal(torch.cat(got), want)
    assert torch.equal(cut.states[2], whole.states[2])


@both_gates
@pytest.mark.parametrize(
    "edges", [(48, 64, 128, 144), (54, 64, 74), (60, 64, 100)], ids=["both ends", "nothing between", "the first end"]
)
def test_sixteen_rows_of_a_chunk_and_fewer_are_computed_as_drafts_are(edges, problem):
    whole, cut = (sequences_of(edges[-1], problem) for _ in range(2))
    for sequences in (whole, cut):
        sequences.run((2, 0, edges[0], 0))
    want = whole.run((2, edges[0], edges[-1], edges[0]))
    got = []
    for first, end in pairwise(edges):
        step = 5 if end - first <= 16 else end - first
        got += [cut.run((2, row, min(row + step, end), row)) for row in range(first, end, step)]
    assert torch.equal(torch.cat(got), want)
    assert torch.equal(cut.states[2], whole.states[2])


@both_gates
def test_seventeen_rows_of_a_chunk_are_computed_in_it(problem):
    together, one_by_one = (sequences_of(17, problem) for _ in range(2))
    want = torch.cat([one_by_one.run((0, row, row + 1, row)) for row in range(17)])
    got = together.run((0, 0, 17, 0))
    assert not torch.equal(got, want)
    assert torch.allclose(got, want, atol=2e-3)


@both_gates
def test_no_bit_depends_on_the_rest_of_the_batch(problem):
    alone, together = (sequences_of(240, problem) for _ in range(2))
    steps = [
        [(0, 0, 70, 0), (5, 70, 71, 0), (7, 71, 200, 0), (4, 200, 201, 0)],
        [(7, 201, 205, 129), (0, 205, 225, 70), (5, 225, 226, 1)],
    ]
    for step in steps:
        want = torch.cat([alone.run(piece) for piece in step])
        assert torch.equal(together.run(*step), want)
    assert torch.equal(together.states[[0, 4, 5, 7]], alone.states[[0, 4, 5, 7]])


@both_gates
def test_each_part_of_two_chunks_is_prepared_where_neither_is_whole(problem):
    alone, together = (sequences_of(164, problem) for _ in range(2))
    for sequences in (alone, together):
        sequences.run((0, 0, 40, 0), (1, 82, 122, 0))
    pieces = [(0, 40, 82, 40), (1, 122, 164, 40)]
    want = torch.cat([alone.run(piece) for piece in pieces])
    assert torch.equal(together.run(*pieces), want)
    assert together.states[:2].isfinite().all()


def test_a_long_sequence_that_pads_the_batch_is_zero_and_touches_no_slot():
    sequences = sequences_of(150)
    out = sequences.run((-1, 0, 70, 0), (6, 70, 150, 0))
    assert not out[:70].any()
    assert out[70:].isfinite().all()
    assert sequences.states[[0, 1, 2, 3, 4, 5, 7, 8]].isnan().all()
    assert sequences.states[6].isfinite().all()


@both_gates
@pytest.mark.parametrize("context", [0, 54, 128], ids=["begins", "goes on with a short end", "goes on"])
def test_a_state_is_kept_elsewhere_and_the_one_before_stays(context, problem):
    elsewhere, in_place = (sequences_of(context + 85, problem) for _ in range(2))
    for sequences in (elsewhere, in_place):
        if context:
            sequences.run((3, 0, context, 0))
        else:
            sequences.states[3] = 0.5
    before = elsewhere.states[3].clone()
    out = elsewhere.run((3, context, context + 85, context), kept=[[-1, 8]])
    assert torch.equal(out, in_place.run((3, context, context + 85, context)))
    assert torch.equal(elsewhere.states[3], before)
    assert torch.equal(elsewhere.states[8], in_place.states[3])


def test_half_precision_is_computed_in_chunks():
    heads = (2, 4)
    assert computes_chunks(GatedDeltaProblem(*heads, 128, 256, torch.bfloat16))
    assert not computes_chunks(GatedDeltaProblem(*heads, 256, 128, torch.bfloat16))
    assert not computes_chunks(GatedDeltaProblem(*heads, 128, 128, torch.float32))
    assert computes_chunks(GatedDeltaProblem(*heads, 128, 128, torch.bfloat16, channel_gates=True))


@pytest.mark.parametrize(
    ("problem", "served"),
    [
        (GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16), True),
        (GatedDeltaProblem(2, 2, 64, 192, torch.float16), True),
        (GatedDeltaProblem(2, 2, 96, 128, torch.bfloat16), False),
        (GatedDeltaProblem(2, 2, 128, 96, torch.bfloat16), False),
    ],
    ids=str,
)
def test_hopper_has_a_scan_of_its_own_for_whole_tiles(monkeypatch, problem, served):
    monkeypatch.setattr(hopper_launch, "triton_release", lambda: "3.6")
    monkeypatch.setattr(hopper_launch, "triton_interpret", lambda: False)
    with use_platform(Platform.nvidia("sm_90")):
        assert hopper_launch.hopper_serves(problem) is served
    for other in (Platform.nvidia("sm_100"), Platform.rocm("gfx942")):
        with use_platform(other):
            assert not hopper_launch.hopper_serves(problem)


def test_stages_of_the_scan_are_as_many_as_local_memory_holds():
    problem = GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16)
    stages = []
    for platform in (Platform.nvidia("sm_90"), Platform.rocm("gfx942"), Platform.rocm("gfx950")):
        with use_platform(platform):
            stages.append(scan_config(problem).num_stages)
    assert stages == [3, 1, 3]


# Qwen3-Next 80B, and Kimi Linear 48B.
REAL = GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16)
both_models = pytest.mark.parametrize(
    "problem", [REAL, GatedDeltaProblem(32, 32, 128, 128, torch.bfloat16, channel_gates=True)], ids=["qwen", "kimi"]
)


@pytest.mark.gpu
@both_models
@pytest.mark.parametrize(("num_rows", "context"), [(1000, 0), (700, 40), (300, 57)])
def test_a_prompt_of_a_real_model_is_the_rule_in_float64_on_a_gpu(num_rows, context, problem):
    sequences = sequences_of(context + num_rows, problem)
    if context:
        sequences.run((0, 0, context, 0))
    out = sequences.run((0, context, context + num_rows, context))
    want, state = rule_in_float64(problem, sequences.weights, sequences.rows)
    # Values of order one, which are rounded to 8 bits some times between.
    assert (out - want[context:]).abs().max() < 0.02 * want.abs().max()
    assert (sequences.states[0] - state).abs().max() < 0.02 * state.abs().max()


@pytest.mark.gpu
@both_models
def test_keys_that_repeat_do_not_lose_what_chunks_are_solved_for_on_a_gpu(problem):
    """All tokens are one: what they add to the state is found by differences of large sums, if it is found badly."""
    sequences = sequences_of(256, problem)
    qkv, a, b = sequences.rows
    sequences.rows = (qkv[:1].repeat(256, 1), torch.full_like(a, -30.0), torch.full_like(b, 30.0))
    out = sequences.run((0, 0, 256, 0))
    want, _ = rule_in_float64(problem, sequences.weights, sequences.rows)
    assert (out - want).abs().max() < 0.02 * want.abs().max()


@pytest.mark.gpu
@both_models
def test_a_graph_serves_prompts_of_other_lengths_than_it_was_made_with(problem):
    sequences = sequences_of(300, problem)
    kernel = plan_with(GATED_DELTA, problem, DELTA_BY_TRITON).prepare(sequences.weights)
    out, states = torch.zeros_like(sequences.out), torch.zeros(4, *sequences.states.shape[1:], device=DEVICE)
    slots, kept, starts, lengths = int32(0, 1), int32([0], [1]), int32(0, 100, 300), int32(100, 200)
    kernel(*sequences.rows, out, states, slots, kept, starts, lengths, 300)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*sequences.rows, out, states, slots, kept, starts, lengths, 300)
    for tensor, values in ((slots, int32(3, 2)), (kept, int32([3], [2])), (starts, int32(0, 257, 300))):
        tensor.copy_(values)
    lengths.copy_(int32(257, 43))
    graph.replay()
    want, want_states = torch.zeros_like(out), torch.zeros_like(states)
    kernel(*sequences.rows, want, want_states, slots, kept, starts, lengths, 300)
    assert torch.equal(out, want)
    assert torch.equal(states[2:], want_states[2:])
