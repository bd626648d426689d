"""Delta nets: the operators against the recurrence in float64, hand-overs of states, and independence of the batch."""

from __future__ import annotations

import importlib.util
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from atom_kernels.delta import GATED_DELTA, SHORT_CONV, DeltaNetProblem, GatedDeltaProblem, ShortConvProblem
from atom_kernels.mixers import select_mixer
from atom_kernels.platform import Platform
from atom_kernels.protocols import BatchGeometry
from atom_kernels.select import plan_with, select
from delta_sequences import Sequences, rule_in_float64

DELTAS = [GatedDeltaProblem(2, 4, 16, 24, torch.float32, channel_gates=gates) for gates in (False, True)]
CONV = ShortConvProblem(40, 4, torch.float32)
RUNS = [
    pytest.param(op, problem, backend, id=f"{op.name}-{backend.name}-{index}")
    for op, problems in ((GATED_DELTA, DELTAS), (SHORT_CONV, [CONV]))
    for index, problem in enumerate(problems)
    for backend in op.backends
    if backend.name in ("torch", "native")
]


@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize(
    "backend", [backend for backend in GATED_DELTA.backends if backend.name in ("torch", "native")]
)
def test_the_delta_rule_is_the_recurrence_in_float64(backend, gates):
    problem = DELTAS[gates]
    sequences = Sequences(GATED_DELTA, problem, backend, 131)
    got = sequences.run((3, 0, 131, 0))
    out, state = rule_in_float64(problem, sequences.weights, sequences.rows)
    assert (got - out).abs().max() < 2e-5
    assert (sequences.states[3] - state).abs().max() < 2e-5


@pytest.mark.parametrize("backend", [backend for backend in SHORT_CONV.backends if backend.name in ("torch", "native")])
def test_the_short_convolution_is_torchs_padded_on_the_left(backend):
    sequences = Sequences(SHORT_CONV, CONV, backend, 23)
    x, weight = sequences.rows[0], sequences.weights["weight"]
    got = sequences.run((1, 0, 23, 0))
    padded = torch.nn.functional.pad(x.T, (3, 0))[None]
    want = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight[:, None], groups=40))[0].T
    assert torch.allclose(got, want, atol=1e-5)
    assert torch.equal(sequences.states[1], x[20:].T)


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128)])
def test_a_state_handed_over_at_a_multiple_of_64_leaves_no_trace(op, problem, backend, cuts):
    whole, cut = (Sequences(op, problem, backend, 129) for _ in range(2))
    want = whole.run((2, 0, 129, 0))
    edges = (0, *cuts, 129)
    got = torch.cat([cut.run((2, first, end, first)) for first, end in pairwise(edges)])
    assert torch.equal(got, want)
    assert torch.equal(cut.states[2], whole.states[2])


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
def test_a_state_can_be_handed_over_at_any_token(op, problem, backend):
    whole, cut = (Sequences(op, problem, backend, 100) for _ in range(2))
    want = whole.run((2, 0, 100, 0))
    edges = (0, 1, 2, 37, 38, 71, 99, 100)
    got = torch.cat([cut.run((2, first, end, first)) for first, end in pairwise(edges)])
    assert torch.allclose(got, want, atol=2e-5)
    assert torch.allclose(cut.states[2], whole.states[2], atol=2e-5)


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
def test_no_bit_depends_on_the_rest_of_the_batch(op, problem, backend):
    alone, together = (Sequences(op, problem, backend, 100) for _ in range(2))
    pieces = [(0, 0, 70, 0), (5, 70, 71, 0), (7, 71, 90, 0), (4, 90, 91, 0), (8, 91, 92, 0)]
    later = [(0, 92, 93, 70), (5, 93, 94, 1), (7, 94, 97, 19), (4, 97, 98, 1), (8, 98, 99, 1)]
    for step in (pieces, later):
        want = torch.cat([alone.run(piece) for piece in step])
        assert torch.equal(together.run(*step), want)
        used = [piece[0] for piece in step]
        assert torch.equal(together.states[used], alone.states[used])


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
def test_a_sequence_that_pads_the_batch_is_zero_and_touches_no_slot(op, problem, backend):
    sequences = Sequences(op, problem, backend, 10)
    out = sequences.run((-1, 0, 4, 0), (6, 4, 10, 0))
    assert not out[:4].any()
    assert out[4:].isfinite().all()
    assert sequences.states[:6].isnan().all()
    assert sequences.states[7:].isnan().all()
    assert sequences.states[6].isfinite().all()


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
def test_a_state_is_kept_behind_each_draft_and_is_that_of_a_sequence_that_ends_there(op, problem, backend):
    whole, one_by_one = (Sequences(op, problem, backend, 80) for _ in range(2))
    for sequences in (whole, one_by_one):
        sequences.run((0, 0, 62, 0), (5, 66, 69, 0))
    # The fifth row of the first sequence is kept nowhere; the second has fewer rows than there are columns.
    got = whole.run((0, 62, 66, 62), (5, 69, 71, 3), kept=[[2, 3, -1, 4], [7, 8, 6, 5]])
    want = []
    for rows, slot, next_slot in (((62, 63), 0, 2), ((63, 64), 2, 3), ((64, 65), 3, 1), ((65, 66), 1, 4)):
        want.append(one_by_one.run((slot, *rows, rows[0]), kept=[[next_slot]]))
    for rows, slot, next_slot in (((69, 70), 5, 6), ((70, 71), 6, 5)):
        want.append(one_by_one.run((slot, *rows, rows[0] - 66), kept=[[next_slot]]))
    assert torch.equal(got, torch.cat(want))
    assert torch.equal(whole.states[[0, 2, 3, 4, 5, 6]], one_by_one.states[[0, 2, 3, 4, 5, 6]])
    assert whole.states[[1, 7, 8]].isnan().all()


@pytest.mark.parametrize(("op", "problem", "backend"), RUNS)
def test_a_sequence_of_more_rows_than_can_be_kept_keeps_its_last_state(op, problem, backend):
    sequences = Sequences(op, problem, backend, 30)
    sequences.run((0, 0, 20, 0), kept=[[1, 2]])
    assert sequences.states[[0, 1]].isnan().all()
    want = Sequences(op, problem, backend, 30)
    want.run((0, 0, 20, 0))
    assert torch.equal(sequences.states[2], want.states[0])


def test_more_states_than_are_computed_token_by_token_are_refused():
    sequences = Sequences(GATED_DELTA, DELTAS[0], GATED_DELTA.backends[-1], 20)
    with pytest.raises(ValueError, match="kept_slots names 17 states of each sequence, and at most 16 can be kept"):
        sequences.run((0, 0, 17, 0), kept=[list(range(17))])


@pytest.mark.parametrize("run", ["reference", "torch"])
def test_a_long_sequence_that_keeps_no_state_is_refused(run):
    problem = DELTAS[0]
    weights, (*inputs, _, _, _, _, _) = GATED_DELTA.make_inputs(problem, 17, torch.Generator().manual_seed(0))
    step = [torch.tensor(values).int() for values in ([0], [[-1]], [0, 17], [17])]
    plan = plan_with(GATED_DELTA, problem, GATED_DELTA.backends[-1])
    kernel = partial(GATED_DELTA.reference, problem, weights) if run == "reference" else plan.prepare(weights)
    with pytest.raises(ValueError, match="kept_slots keeps no state of a sequence of 17 rows"):
        kernel(*inputs, *step, 17)


def test_heads_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(ValueError, match="5 value heads cannot share 2 key heads"):
        GatedDeltaProblem(2, 5, 16, 16, torch.float32)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_delta_rule_is_that_of_transformers():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    problem = DELTAS[0]
    sequences = Sequences(GATED_DELTA, problem, GATED_DELTA.backends[-1], 75)
    qkv, a, b = (x[None] for x in sequences.rows)
    q, k, v = (x.reshape(1, 75, -1, size) for x, size in zip(qkv.split([32, 32, 96], 2), (16, 16, 24), strict=True))
    rates = torch.nn.functional.softplus(a + sequences.weights["dt_bias"])
    g = -sequences.weights["a_log"].exp() * rates
    want, state = torch_chunk_gated_delta_rule(
        q, k, v, g, b.sigmoid(), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert torch.allclose(sequences.run((0, 0, 75, 0)), want[0], atol=1e-5)
    assert torch.allclose(sequences.states[0], state[0], atol=1e-5)


@pytest.mark.parametrize(
    ("key_dim", "captured"), [(128, True), (512, False)], ids=["as published", "wider than a kernel takes"]
)
def test_a_step_on_a_gpu_is_captured_where_kernels_find_its_sequences_there(key_dim, captured):
    problem = DeltaNetProblem(
        num_key_heads=2, num_value_heads=4, key_dim=key_dim, value_dim=128, conv_width=4, dtype="bfloat16"
    )
    assert select_mixer(problem, Platform.nvidia("sm_90")).capturable is captured


def test_an_empty_sequence_has_no_state_whatever_its_row_of_the_block_table_holds():
    """A batch is padded to the shape of a graph with such, and rows of the table are not cleared for it."""

    def int32(*values):
        return torch.tensor(values, dtype=torch.int32)

    geometry = BatchGeometry(
        query_start_loc=int32(0, 1, 2), seq_lens=int32(5, 0), block_table=int32(3, 1)[:, None],
        slot_mapping=torch.tensor([4, -1]), num_reqs=2, num_tokens=2, num_decodes=2, max_query_len=1, max_seq_len=5,
    )  # fmt: skip
    sizes: dict[str, Any] = {"num_key_heads": 1, "num_value_heads": 1, "key_dim": 8, "value_dim": 8, "conv_width": 2}
    plan = select_mixer(DeltaNetProblem(**sizes, dtype="float32"))
    caches = tuple(cache.fill_(0.5) for cache in plan.layout.allocate(4, "cpu"))
    before = [cache.clone() for cache in caches]
    weights = {name: torch.ones(spec.shape, dtype=spec.dtype) for name, spec in plan.problem.weights.items()}
    inputs = (torch.ones(2, 24), torch.ones(2, 1), torch.ones(2, 1))
    out = plan.forward(inputs, caches, plan.build_metadata(geometry), weights=plan.prepare(weights))
    assert out[0].any()
    assert not out[1].any()
    for cache, old in zip(caches, before, strict=True):
        assert not torch.equal(cache[2], old[2])
        cache[2] = old[2]
        assert torch.equal(cache, old)


def test_inputs_of_another_dtype_or_size_are_refused_before_c_reads_them():
    problem = GatedDeltaProblem(1, 2, 8, 8, torch.float32)
    weights, inputs = GATED_DELTA.make_inputs(problem, 3, torch.Generator().manual_seed(0))
    run = select(GATED_DELTA, problem, only_backend="native").prepare(weights)
    for wrong in (inputs[0].bfloat16(), inputs[0][:, :-1]):
        with pytest.raises(TypeError, match="gated_delta was planned for"):
            run(wrong, *inputs[1:])


@pytest.mark.parametrize(("op", "problem", "backend"), [run for run in RUNS if "native" in str(run.id)])
def test_slots_that_c_cannot_write_in_place_are_refused(op, problem, backend):
    sequences = Sequences(op, problem, backend, 3)
    for wrong in (sequences.states.transpose(-1, -2), sequences.states.double()):
        sequences.states = wrong
        with pytest.raises(ValueError, match="states are written in place, and each slot must be contiguous"):
            sequences.run((1, 0, 3, 0))
