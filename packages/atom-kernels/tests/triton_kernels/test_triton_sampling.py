"""Draws in Triton are those of the contract, token for token."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform
from atom_kernels.sampling import (
    SAMPLE_SLOTS,
    SamplingTables,
    SlotSamplingProblem,
    philox_uniform,
    sample_slots,
    triton_backend,
)
from atom_kernels.sampling.triton_backend import sample_slots_by_triton
from atom_kernels.sampling.triton_draw import _uniform

DEVICE = detect_platform().device
# Infinite logits make differences of infinities, which NumPy mentions; their weights are 0 by the contract.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# The random numbers of the first positions of seed 0.
NUMBERS = philox_uniform(*(torch.zeros(2**16, dtype=torch.int64),) * 2, torch.arange(2**16))


def position_of(uniform):
    """Where the random number of seed 0 is nearest to this one."""
    return int((NUMBERS - uniform).abs().argmin())


def draw_rows(logits, *, uniform, temperature, top_k, top_p, min_p):
    """Tokens of rows that have a slot each, seed 0, and the random number nearest to `uniform`."""
    none = torch.zeros(len(logits), dtype=torch.int64)
    slots, positions = torch.arange(len(logits)), none + position_of(uniform)
    rows = (logits, slots, positions, *SamplingTables(temperature, top_k.int(), top_p, min_p, none, none))
    token_ids = sample_slots_by_triton(*(row.to(DEVICE) for row in rows), filters=True).tolist()
    assert token_ids == sample_slots(*rows, filters=True).tolist()
    return token_ids


def draw(logits, *, uniform=0.5, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    parameters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    columns = {name: torch.tensor([value]) for name, value in parameters.items()}
    [token] = draw_rows(torch.as_tensor(logits), uniform=uniform, **columns)
    return token


def test_odd_vocabularies_draw_the_tokens_of_the_reference():
    count = 0
    for case in parity_cases(SAMPLE_SLOTS, detect_platform()):
        many = case.label.endswith(("rows=17", "rows=67"))
        if case.backend.startswith("triton") and not many:
            assert (problem := mismatch(case.run(), case.expected(), case.tolerance)) is None, (
                f"{case.label}: {problem}"
            )
            count += 1
    assert count == 30


def test_ties_at_a_threshold_are_all_kept_and_minus_zero_ties_with_zero():
    logits = [[0.0, -0.0, -5.0, 0.0]]
    assert {draw(logits, uniform=u, top_k=1) for u in (0.1, 0.5, 0.9)} == {0, 1, 3}
    assert {draw(logits, uniform=u, top_p=0.01) for u in (0.1, 0.5, 0.9)} == {0, 1, 3}


def test_top_p_ends_with_the_token_that_reaches_it_to_the_bit():
    logits = torch.tensor([[1 / 4, 1, 1 / 4, 1 / 2]]).log()  # sums of these weights have no rounding
    numbers = (0.0, 0.1, 0.3, 0.6, 0.7, 0.8, 0.9, 0.999)
    assert {draw(logits, uniform=u, top_p=0.5) for u in numbers} == {1}
    assert {draw(logits, uniform=u, top_p=0.75) for u in numbers} == {1, 3}
    assert {draw(logits, uniform=u, top_p=0.75 + 2**-23) for u in numbers} == {0, 1, 2, 3}
    beside = torch.tensor([[1 / 4, 1, 1 / 4, 1 / 2, 1 / 8]]).log()
    assert {draw(beside, uniform=u, top_k=4, top_p=0.75) for u in numbers} == {1, 3}


def test_more_ties_than_a_region_of_candidates_takes_are_searched_all_the_same():
    logits = torch.zeros(1, 300)
    logits[0, 7] = 1.0
    logits[0, 280:] = torch.linspace(-1.0, 0.5, 20)
    draw(logits, uniform=0.7, top_p=0.4)


@pytest.fixture(params=[4, 16])
def small_cut(monkeypatch, request):
    """Chunks of 16 tokens, four of them to a program, and 4 or 16 candidates of each: a short row has many of all.

    The memory that kernels take is full of a number, which stands behind its end too, where nobody may write.
    """
    for name, size in (("_CHUNK", 16), ("_GROUP", 4), ("_MANY_ROWS", 2), ("_REGION", request.param)):
        monkeypatch.setattr(triton_backend, name, size)
    behind = []

    def full(*shape, **options):
        size = math.prod(torch.Size(*shape) if isinstance(shape[0], tuple) else shape)
        memory = torch.full((size + 64,), 3, **options)
        behind.append(memory[size:])
        return memory[:size].view(*shape)

    monkeypatch.setattr(torch, "empty", full)
    yield
    assert behind
    assert all(bool((rest == 3).all()) for rest in behind)


# Top-k and top-p of rows: none, as many as chunks, fewer and more of them, and both together.
FILTERS = [(0, 1.0), (1, 1.0), (6, 1.0), (40, 1.0), (0, 0.5), (0, 0.97), (40, 0.6), (5, 0.7), (82, 0.2)]


def make_rows(seed):
    """Rows of 83 logits, the highest first: many of every other row are alike, and those of the last rows below 0."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(FILTERS), 83, generator=generator) * 1.5
    logits[::2] = (logits[::2] * 4).round() / 4
    logits[6:] -= 9.0
    return logits.sort(descending=True).values, generator


def draw_filtered(logits, temperature, uniform):
    top_k, top_p = (torch.tensor(column) for column in zip(*FILTERS, strict=True))
    min_p = torch.tensor([0.0, 0.1, 0.0] * 3)
    return draw_rows(logits, uniform=uniform, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.usefixtures("small_cut")
def test_each_of_several_rows_ends_with_the_last_token_that_its_filters_keep():
    logits, _ = make_rows(0)
    last = draw_filtered(logits, torch.full((len(FILTERS),), 1.5), 1.0)
    assert last[0] == 82 > last[3] > last[2] >= 3


@pytest.mark.parametrize("small_cut", [4], indirect=True)
@pytest.mark.usefixtures("small_cut")
def test_tokens_at_a_pivot_and_next_to_it_count_once_where_the_row_itself_is_searched():
    """Below the pivot lie more tokens of a chunk than its region holds, and the threshold among them."""
    logits = torch.linspace(-1.5, -4.5, 80)
    logits[0] = 0
    for _ in range(20):  # where the pivots lie depends on these six
        spread = (80 / (logits.double().exp().sum().float() * 0.5)).log()
        logits[1:4] = -(spread + 1) * 7 / 16
        logits[4:7] = logits[1:4].nextafter(torch.tensor(-math.inf))
    assert draw(logits.sort(descending=True).values[None], uniform=1.0, top_p=0.5) == 14


def test_the_tokens_of_a_row_need_not_lie_side_by_side():
    logits, _ = make_rows(0)
    apart = logits.t().contiguous().t()
    assert apart.stride(1) > 1
    draw_filtered(apart, torch.ones(len(FILTERS)), 0.5)


@pytest.mark.parametrize("small_cut", [16], indirect=True)
@pytest.mark.usefixtures("small_cut")
def test_greedy_rows_and_random_ones_stand_side_by_side_in_any_order_of_tokens():
    logits, generator = make_rows(1)
    logits[4] = -2.0
    logits[5, 20:] = float("-inf")
    logits = logits[:, torch.randperm(83, generator=generator)]
    greedy = logits[::4].argmax(dim=1).tolist()
    assert draw_filtered(logits, torch.tensor([0.0, 0.7, 1.0, 2.0] * 3)[:9], 0.6)[::4] == greedy


@triton.jit
def number_kernel(out_ptr, seed_ptr, sample_ptr, position_ptr):
    at = tl.program_id(0)
    tl.store(out_ptr + at, _uniform(tl.load(seed_ptr + at), tl.load(sample_ptr + at), tl.load(position_ptr + at)))


def test_random_numbers_are_those_of_the_contract_to_the_last_bit():
    rows = (torch.tensor([0, 5, -1, 2**63 - 1]), torch.tensor([0, 3, 2**33, 1]), torch.tensor([0, 7, 2, 2**35 + 1]))
    out = torch.empty(4, dtype=torch.float64, device=DEVICE)
    number_kernel[(4,)](out, *(row.to(DEVICE) for row in rows))
    assert torch.equal(out.cpu(), philox_uniform(*rows))


def test_a_flat_row_of_several_chunks_keeps_its_nucleus():
    logits = torch.randn(1, 9000, generator=torch.Generator().manual_seed(3))
    for uniform, top_p in ((0.2, 0.5), (0.999, 0.95), (0.6, 0.9999), (0.999999, 1e-6)):
        draw(logits, uniform=uniform, top_p=top_p)


def draw_last_kept(logits, temperature, top_p):
    """The token of the greatest number, in each row: the last that the filters keep."""
    none = torch.zeros(len(logits))
    return draw_rows(logits, uniform=1.0, temperature=temperature, top_k=none, top_p=top_p, min_p=none)


def test_a_row_after_the_first_is_searched_in_its_own_logits():
    # More tokens lie close together than a region of candidates takes, so the row itself is searched.
    close = torch.zeros(3, 300)
    close[0] = 100.0  # before the rows that are drawn
    close[1, :100] = close[2, :200] = 0.01
    assert draw_last_kept(close[1:], torch.ones(2), torch.tensor([0.2, 0.4])) == [99, 199]


def test_each_row_is_filtered_at_its_own_temperature():
    falling = torch.linspace(4.0, -4.0, 300).expand(3, -1).contiguous()
    temperatures = torch.tensor([0.1, 2.0, 0.7, 1.3])[1:]
    first, second, third = draw_last_kept(falling, temperatures, torch.tensor([0.9, 0.9, 0.8]))
    assert first > third > second


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_min_p_alone_leaves_no_weight_to_what_it_drops_in_other_chunks(temperature):
    logits = torch.zeros(1, 2048)
    logits[0, :1024] = -20.0
    logits[0, 5] = logits[0, 1500] = 5.0
    assert {draw(logits, uniform=u, temperature=temperature, min_p=0.5) for u in (0.2, 0.45)} == {5}
    assert {draw(logits, uniform=u, temperature=temperature, min_p=0.5) for u in (0.55, 0.9)} == {1500}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_infinities_and_nan_have_the_places_of_the_contract(temperature):
    inf, nan = float("inf"), float("nan")
    assert draw([[nan, 1.0, -inf, nan]], temperature=temperature) == 1
    assert draw([[0.0, inf, 3.0, inf]], temperature=temperature, uniform=0.9) in (1, 3)
    draw([[-inf, -inf, -inf]], temperature=temperature)


def test_the_last_token_of_any_weight_is_drawn_at_the_end():
    assert draw([[1.0, 2.0, float("-inf"), 3.0, -1e4, float("-inf")]], uniform=1.0) == 3


def test_each_position_of_each_sample_has_the_random_number_of_its_own():
    seeds, samples = [5, 5, -1, 2**63 - 1, -(2**63)], [0, 3, 0, 2**33, 1]
    positions = [0, 1, 2, 3, 4, 7, 8, 2**31 - 1]
    none = torch.zeros(5)
    columns = (torch.ones(5), none.int(), torch.ones(5), none, torch.tensor(seeds), torch.tensor(samples))
    tables = SamplingTables(*(column.to(DEVICE) for column in columns))
    slots, places = torch.arange(5).repeat(len(positions)), torch.tensor(positions).repeat_interleave(5)
    logits = torch.zeros(len(slots), 1000, device=DEVICE)
    drawn = sample_slots_by_triton(logits, slots.to(DEVICE), places.to(DEVICE), *tables, filters=False)
    # Among 1000 equals, the number says directly which one.
    assert drawn.tolist() == [
        int(1000 * number)
        for number in philox_uniform(torch.tensor(seeds)[slots], torch.tensor(samples)[slots], places)
    ]


def make_tables(num_slots, generator, *, filters):
    """Requests of every kind: greedy ones, and with each filter and none."""

    def any_of(*values):
        return torch.tensor(values)[torch.randint(len(values), (num_slots,), generator=generator)]

    return SamplingTables(
        temperature=any_of(0.0, 0.6, 1.0, 1.5),
        top_k=(any_of(0, 1, 20, -1) if filters else torch.full((num_slots,), 3)).int(),
        top_p=any_of(1.0, 0.9, 0.2),
        min_p=any_of(0.0, 0.0, 0.1),
        seed=torch.randint(-(2**63), 2**63 - 1, (num_slots,), generator=generator),
        sample_index=torch.randint(0, 5, (num_slots,), generator=generator),
    )


def check_slots(num_rows, vocab_size, *, filters):
    generator = torch.Generator().manual_seed(num_rows)
    tables = make_tables(num_rows + 3, generator, filters=filters)
    slots = torch.randperm(num_rows + 3, generator=generator)[:num_rows].int()
    positions = torch.randint(0, 2**31 - 1, (num_rows,), generator=generator)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    rows = (logits, slots, positions, *tables)
    expected = sample_slots(*rows, filters=filters)
    assert sample_slots_by_triton(*(x.to(DEVICE) for x in rows), filters=filters).tolist() == expected.tolist()


@pytest.mark.parametrize("filters", [False, True])
def test_rows_find_their_parameters_and_random_numbers_by_slot(filters):
    check_slots(9, 4300, filters=filters)


@pytest.mark.gpu
@pytest.mark.parametrize("filters", [False, True])
def test_rows_of_a_real_vocabulary_find_their_parameters_on_a_gpu(filters):
    check_slots(200, 151936, filters=filters)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 60, 256])
def test_a_real_vocabulary_draws_the_tokens_of_the_reference_on_a_gpu(num_rows):
    problem = SlotSamplingProblem(151936, filters=True)
    weights, inputs = SAMPLE_SLOTS.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    got = sample_slots_by_triton(*(x.cuda() for x in inputs), filters=True)
    expected = SAMPLE_SLOTS.reference(problem, weights, *(x.cuda() for x in inputs))
    assert mismatch(got, expected, Tolerance(0, 0)) is None
