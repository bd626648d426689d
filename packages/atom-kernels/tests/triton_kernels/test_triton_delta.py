"""Delta nets in Triton: the numbers of the reference, states where they belong, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.delta import GATED_DELTA, SHORT_CONV, GatedDeltaProblem, ShortConvProblem
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with
from delta_sequences import Sequences

DEVICE = detect_platform().device
RUNS = [
    pytest.param(SHORT_CONV, ShortConvProblem(5, 4, torch.float32), id="short_conv"),
    pytest.param(GATED_DELTA, GatedDeltaProblem(1, 1, 4, 3, torch.float32, channel_gates=True), id="gated_delta"),
]
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def by_triton(op):
    return next(backend for backend in op.backends if backend.name == "triton")


def sequences_of(op, problem, num_rows):
    return Sequences(op, problem, by_triton(op), num_rows)


def kernel_of(op, problem, weights):
    return plan_with(op, problem, by_triton(op)).prepare(weights)


def a_step(op, problem, lengths, contexts, before=0, behind=0):
    """Weights and inputs of sequences in slots 0, 1, ... that keep their states in place, between rows of none."""
    num_rows = before + sum(lengths) + behind
    weights, inputs = op.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
    at = op.written[1]
    slots = torch.arange(len(lengths), dtype=torch.int32)
    lengths, contexts = torch.tensor(lengths), torch.tensor(contexts)
    starts = before + torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = (slots, slots[:, None], starts.int(), (lengths + contexts).int())
    longest = (num_rows,) if op is GATED_DELTA else ()
    weights = {name: weight.to(DEVICE) for name, weight in weights.items()}
    return weights, tuple(x.to(DEVICE) for x in (*inputs[: at + 1], *indices)) + longest


@pytest.mark.parametrize(
    ("op", "rows", "shapes"),
    [
        (SHORT_CONV, 5, {"channels=1", "channels=1000"}),
        # Larger ones, and more of them, take long in the interpreter.
        (GATED_DELTA, 5, {"key_dim=4"}),
        (GATED_DELTA, 1, {"key_dim=16", "key_dim=20"}),
    ],
)
def test_odd_shapes_in_every_dtype_agree_with_the_reference(op, rows, shapes):
    left = set(shapes)
    for case in parity_cases(op, detect_platform(), "triton"):
        shape = shapes & set(case.label.split())
        if shape and case.label.endswith(f"rows={rows}"):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            left -= shape
    assert not left


@pytest.mark.parametrize(("op", "problem"), RUNS)
def test_no_bit_depends_on_how_a_sequence_is_cut_or_on_the_rest_of_the_batch(op, problem):
    whole, cut = (sequences_of(op, problem, 22) for _ in range(2))
    want = whole.run((0, 0, 20, 0))
    got = [cut.run((0, 0, 1, 0), (5, 20, 22, 2)), cut.run((0, 1, 3, 1)), cut.run((7, 20, 22, 0), (0, 3, 20, 3))]
    assert torch.equal(torch.cat([got[0][:1], got[1], got[2][2:]]), want)
    assert torch.equal(cut.states[0], whole.states[0])


def test_a_sequence_is_found_behind_more_than_are_looked_for_at_a_time():
    crowded, alone = (sequences_of(SHORT_CONV, ShortConvProblem(1, 2, torch.float32), 4) for _ in range(2))
    out = crowded.run(*[(-1, 3, 3, 0)] * 130, (0, 0, 3, 0))
    assert torch.equal(out, alone.run((0, 0, 3, 0)))


@pytest.mark.parametrize(("op", "problem"), RUNS)
def test_a_sequence_that_pads_the_batch_is_zero_and_touches_no_slot(op, problem):
    sequences = sequences_of(op, problem, 10)
    out = sequences.run((-1, 0, 4, 0), (6, 4, 10, 0))
    assert not out[:4].any()
    assert out[4:].isfinite().all()
    assert sequences.states[[0, 1, 2, 3, 4, 5, 7, 8]].isnan().all()
    assert sequences.states[6].isfinite().all()


@pytest.mark.parametrize(("op", "problem"), RUNS)
def test_rows_of_no_sequence_are_zero(op, problem):
    weights, inputs = a_step(op, problem, [2, 2], [0, 0], before=2, behind=10)
    place = op.written[0]
    kernel_of(op, problem, weights)(*inputs)
    out = inputs[place]
    assert not out[:2].any()
    assert not out[6:].any()
    assert out[2:6].flatten(1).any(dim=1).all()


@pytest.mark.parametrize(("op", "problem"), RUNS)
@pytest.mark.parametrize("in_place", [0, 2])
def test_a_state_is_kept_behind_each_draft_and_is_that_of_a_sequence_that_ends_there(op, problem, in_place):
    whole, one_by_one = (sequences_of(op, problem, 80) for _ in range(2))
    for sequences in (whole, one_by_one):
        sequences.run((0, 4, 6, 0), (5, 12, 13, 0))
    # One of the first sequence's states overwrites the one that all are made from; the second has fewer rows than
    # there are columns.
    kept = [0 if column == in_place else column + 1 for column in range(4)]
    got = whole.run((0, 6, 10, 2), (5, 13, 15, 1), kept=[kept, [7, 8, 6, 5]])
    want, states = [], []
    for row, slot in zip(range(6, 10), [0, 1, 1, 1], strict=True):
        want.append(one_by_one.run((slot, row, row + 1, row - 4), kept=[[1]]))
        states.append(one_by_one.states[1].clone())
    for row, slot in ((13, 5), (14, 6)):
        want.append(one_by_one.run((slot, row, row + 1, row - 12), kept=[[6]]))
        states.append(one_by_one.states[6].clone())
    assert torch.equal(got, torch.cat(want))
    assert torch.equal(whole.states[[*kept, 6, 5]], torch.stack(states))
    assert whole.states[[7, 8]].isnan().all()


@pytest.mark.parametrize(("op", "problem"), RUNS)
def test_a_sequence_of_more_rows_than_can_be_kept_keeps_its_last_state(op, problem):
    sequences, want = (sequences_of(op, problem, 30) for _ in range(2))
    sequences.run((0, 0, 5, 0), kept=[[1, 2]])
    want.run((0, 0, 5, 0))
    assert sequences.states[[0, 1]].isnan().all()
    assert torch.equal(sequences.states[2], want.states[0])


@pytest.mark.parametrize(("op", "problem"), RUNS)
def test_rows_of_another_size_are_refused(op, problem):
    sequences = sequences_of(op, problem, 2)
    sequences.rows = tuple(x[:, 1:] for x in sequences.rows)
    with pytest.raises(TypeError, match=f"{op.name} was planned for"):
        sequences.run((0, 0, 1, 0))


# Qwen3-Next 80B, and gates of channels at its size.
ON_GPU = [
    pytest.param(SHORT_CONV, ShortConvProblem(8192, 4, torch.bfloat16), id="short_conv"),
    pytest.param(GATED_DELTA, GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16), id="gated_delta"),
    pytest.param(
        GATED_DELTA, GatedDeltaProblem(16, 32, 128, 128, torch.bfloat16, channel_gates=True), id="channel_gates"
    ),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "problem"), ON_GPU)
@pytest.mark.parametrize("lengths", [[1] * 64, [1000], [4, 1, 16] * 3 + [300]], ids=["decodes", "prompt", "mixed"])
def test_a_real_model_agrees_on_a_gpu(op, problem, lengths):
    weights, inputs = a_step(op, problem, lengths, [0 if length == 1000 else 100 for length in lengths])
    mine, theirs = ([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2))
    kernel_of(op, problem, weights)(*mine)
    op.reference(problem, weights, *theirs)
    out, states = op.written
    found = mismatch((mine[out], mine[states]), (theirs[out], theirs[states]), op.tolerance(problem))
    assert found is None, found


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "problem"), ON_GPU)
def test_no_bit_depends_on_cuts_drafts_or_company_on_a_gpu(op, problem):
    whole, cut = (sequences_of(op, problem, 300) for _ in range(2))
    want = whole.run((0, 0, 140, 0))
    got = [
        cut.run((3, 200, 300, 0), (0, 0, 64, 0))[100:],
        cut.run((0, 64, 128, 64), (5, 200, 300, 0))[:64],
        cut.run((0, 128, 129, 128)),
        cut.run((0, 129, 133, 129), (7, 200, 204, 0), kept=[[1, 2, 4, 0], [-1, -1, -1, 7]])[:3],
        # Two of three drafts were right.
        cut.run((4, 132, 140, 132), kept=[[0]]),
    ]
    assert torch.equal(torch.cat(got), want)
    assert torch.equal(cut.states[0], whole.states[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "problem"), ON_GPU)
def test_a_graph_serves_other_lengths_and_slots_than_it_was_made_with(op, problem):
    weights, inputs = a_step(op, problem, [1] * 16, [100] * 16)
    kernel, (out, states) = kernel_of(op, problem, weights), op.written
    before = inputs[states].clone()
    kernel(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*inputs)
    other = ([7, 2, -1, 9], [[3], [2], [-1], [9]], [0, 6, 7, 16], [6, 40, 0, 90])
    slots, kept, starts, lengths = (torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in other)
    for place, values in enumerate((slots, kept, starts, lengths), states + 1):
        inputs[place].fill_(-1 if place < states + 3 else 16)[: len(values)] = values
    inputs[states].copy_(before)
    graph.replay()
    wanted = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    wanted[states].copy_(before)
    kernel(*wanted)
    assert torch.equal(inputs[out], wanted[out])
    assert torch.equal(inputs[states], wanted[states])
    assert not torch.equal(inputs[states][3], before[3])
