"""Delta nets in Triton: the numbers of the reference, states where they belong, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.delta import GATED_DELTA, SHORT_CONV, GatedDeltaProblem, ShortConvProblem
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with
from delta_sequences import Sequences

RUNS = [
    pytest.param(SHORT_CONV, ShortConvProblem(5, 4, torch.float32), id="short_conv"),
    pytest.param(GATED_DELTA, GatedDeltaProblem(1, 1, 4, 3, torch.float32, channel_gates=True), id="gated_delta"),
]
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def sequences_of(op, problem, num_rows):
    backend = next(backend for backend in op.backends if backend.name == "triton")
    return Sequences(op, problem, backend, num_rows)


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
    weights, inputs = op.make_inputs(problem, 30, torch.Generator().manual_seed(0))
    device = detect_platform().device
    inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
    place = op.written[0]
    num_sequences = 2
    inputs[place + 2] = torch.tensor([0, 1], dtype=torch.int32, device=device)
    inputs[place + 3] = torch.tensor([[0], [1]], dtype=torch.int32, device=device)
    inputs[place + 4] = torch.tensor([2, 4, 6], dtype=torch.int32, device=device)
    inputs[place + 5] = torch.full((num_sequences,), 2, dtype=torch.int32, device=device)
    backend = next(backend for backend in op.backends if backend.name == "triton")
    plan_with(op, problem, backend).prepare({key: weight.to(device) for key, weight in weights.items()})(*inputs)
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
