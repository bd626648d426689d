"""The kernels build the same step on the device as the host does."""

from __future__ import annotations

import random

import pytest
import torch

from atom_core.messages import NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.sampler import Drawing, Sampler
from atom_core.worker.steps.batch import ModelInput, StepRows, build_input
from atom_core.worker.steps.device_inputs import DeviceInputs
from atom_kernels.platform import Facts, detect_platform, platform_from_facts, use_platform
from atom_kernels.sampling import SAMPLE_SLOTS, SlotSamplingProblem, philox_uniform
from atom_kernels.select import select

DEVICE = detect_platform().device
BLOCK_SIZE, MAX_NUM_SEQS, MAX_MODEL_LEN, NUM_GROUPS = 4, 6, 700, 2


class Sides:
    """The same steps, built on the host and on the device."""

    def __init__(self) -> None:
        size = {"block_size": BLOCK_SIZE, "num_groups": NUM_GROUPS}
        self.tables = DeviceTables(MAX_NUM_SEQS, MAX_MODEL_LEN, device=DEVICE, **size)
        self.host_tables = HostTables(MAX_NUM_SEQS, MAX_MODEL_LEN, **size)
        options = {"num_groups": NUM_GROUPS, "vocab_size": 100}
        self.host = RequestStates(MAX_NUM_SEQS, self.host_tables, device="cpu", **options)
        self.device = RequestStates(MAX_NUM_SEQS, self.tables, device=DEVICE, **options)
        self.inputs = DeviceInputs(
            self.tables, block_size=BLOCK_SIZE, max_num_seqs=MAX_NUM_SEQS, max_num_tokens=MAX_MODEL_LEN
        )
        self.num_steps = 0

    def build(
        self, scheduled: list[ScheduledRequest], new: list[NewRequest] | None = None, *, dropped: tuple[str, ...] = ()
    ) -> tuple[ModelInput, ModelInput]:
        step = SchedulerOutput(self.num_steps, scheduled, new or [], list(dropped))
        self.num_steps += 1
        for states in (self.host, self.device):
            states.update(step)
        rows = StepRows.of(step, self.host.slots)
        return build_input(rows, self.host_tables, BLOCK_SIZE), self.inputs.build(rows)


def new_request(name: str, num_tokens: int, **params) -> NewRequest:
    tokens = [random.Random(name).randrange(100) for _ in range(num_tokens)]
    return NewRequest(name, tokens, num_tokens, SamplingParams(**params), (), 0)


def entry(
    name: str,
    start: int,
    length: int,
    *,
    blocks: list[list[int]] | None = None,
    samples: int = 1,
    drafts: tuple[int, ...] = (),
):
    return ScheduledRequest(name, start, length, blocks or [], samples, drafts)


def blocks_of(num_tokens: int, first: int) -> list[list[int]]:
    """Ids of a request's blocks in each group: a different order in each."""
    ids = list(range(first, first + -(-num_tokens // BLOCK_SIZE)))
    return [ids, ids[::-1]]


def assert_equal(host: ModelInput, device: ModelInput) -> None:
    for name in ("input_ids", "positions", "sampled_tokens", "sample_slots", "sample_positions"):
        expected, found = getattr(host, name), getattr(device, name)
        assert (expected is None) == (found is None), name
        if expected is not None:
            assert expected.dtype == found.dtype
            assert expected.tolist() == found.tolist(), name
    for expected, found in zip(host.geometries, device.geometries, strict=True):
        for name in ("query_start_loc", "seq_lens", "slot_mapping"):
            assert getattr(expected, name).dtype == getattr(found, name).dtype
            assert getattr(expected, name).tolist() == getattr(found, name).tolist(), name
        for index, length in enumerate(expected.seq_lens.tolist()):
            used = -(-length // BLOCK_SIZE)
            assert expected.block_table[index, :used].tolist() == found.block_table[index, :used].tolist()
        for name in ("num_reqs", "num_tokens", "num_decodes", "max_query_len", "max_seq_len", "max_decode_len"):
            assert getattr(expected, name) == getattr(found, name), name


def test_prompts_of_one_and_of_many_tokens_are_built_alike():
    sides = Sides()
    new = [new_request("one", 1), new_request("long", 600), new_request("part", 30)]
    scheduled = [
        entry("one", 0, 1, blocks=blocks_of(1, 0)),
        entry("long", 0, 600, blocks=blocks_of(600, 10)),
        entry("part", 0, 11, blocks=blocks_of(11, 200), samples=0),
    ]
    assert_equal(*sides.build(scheduled, new))


def test_decodes_beside_chunks_of_prompts_and_new_requests_in_freed_slots_are_built_alike():
    sides = Sides()
    sides.build(
        [entry("a", 0, 7, blocks=blocks_of(7, 0)), entry("b", 0, 5, blocks=blocks_of(5, 50), samples=0)],
        [new_request("a", 7), new_request("b", 20)],
    )
    for history in (sides.host.history, sides.device.history):  # what the sampler does
        history[sides.host.slots["a"], 7] = 42
    host, device = sides.build([entry("a", 7, 1), entry("b", 5, 15, blocks=[[60, 61, 62], [63, 64, 65]])])
    assert host.input_ids[0] == 42
    assert_equal(host, device)
    scheduled = [entry("b", 20, 1, blocks=[[70], [71]]), entry("c", 0, 9, blocks=blocks_of(9, 80))]
    assert_equal(*sides.build(scheduled, [new_request("c", 9)], dropped=("a",)))


def test_random_steps_are_built_alike():
    sides, draw = Sides(), random.Random(3)
    computed: dict[str, int] = {}
    for number in range(40):
        name = f"r{number}"
        dropped = tuple(computed)[:1] if len(computed) == MAX_NUM_SEQS else ()
        computed = {key: value for key, value in computed.items() if key not in dropped}
        scheduled = [entry(key, done, 1, blocks=blocks_of(1, 7)) for key, done in computed.items()]
        length = draw.randrange(1, 40)
        scheduled.append(
            entry(name, 0, length, blocks=blocks_of(length, draw.randrange(100)), samples=min(number % 4, length))
        )
        assert_equal(*sides.build(scheduled, [new_request(name, length + 4)], dropped=dropped))
        computed = {key: value + 1 for key, value in computed.items()} | {name: length}


def test_decodes_with_drafts_are_built_alike_and_sample_after_each_draft():
    sides = Sides()
    new = [new_request("a", 7), new_request("b", 5), new_request("c", 9)]
    lengths = {"a": 7, "b": 5, "c": 4}
    sides.build([entry(key, 0, size, blocks=blocks_of(16, 9 * size)) for key, size in lengths.items()], new)
    for history in (sides.host.history, sides.device.history):
        history[sides.host.slots["a"], 7] = history[sides.host.slots["b"], 5] = 42
    host, device = sides.build(
        [entry("a", 7, 4, samples=4, drafts=(1, 2, 3)), entry("b", 5, 1), entry("c", 4, 5, drafts=(6, 5))]
    )
    assert host.input_ids.tolist() == [42, 1, 2, 3, 42, *new[2].token_ids[4:7], 6, 5]
    assert host.sample_positions.tolist() == [8, 9, 10, 11, 6, 9]
    assert host.sampled_tokens is not None
    assert host.sampled_tokens.tolist() == [0, 1, 2, 3, 4, 9]
    assert (host.geometry.num_decodes, host.geometry.max_decode_len) == (2, 4)
    assert_equal(host, device)


def test_padding_has_no_tokens_cached_writes_nothing_and_samples_into_a_row_of_its_own():
    sides = Sides()
    new = [new_request("a", 3), new_request("b", 2)]
    sides.build([entry(r.request_id, 0, len(r.token_ids), blocks=blocks_of(4, 9)) for r in new], new)
    rows = StepRows.of(SchedulerOutput(1, [entry("a", 3, 1), entry("b", 2, 1)], [], []), sides.device.slots)
    sides.inputs.fill(rows, GraphShape(num_reqs=5, num_tokens=5))
    padded = sides.inputs.view(
        rows, num_reqs=5, num_tokens=5, num_decodes=5, num_samples=5, max_query_len=1, max_seq_len=MAX_MODEL_LEN
    )
    assert padded.sampled_tokens is None
    assert padded.geometry.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]
    assert padded.geometry.seq_lens.tolist() == [4, 3, 0, 0, 0]
    assert [geometry.slot_mapping.tolist()[2:] for geometry in padded.geometries] == [[-1, -1, -1]] * NUM_GROUPS
    assert padded.input_ids.tolist()[2:] == padded.positions.tolist()[2:] == [0, 0, 0]
    padding = sides.tables.padding_slot
    assert padded.sample_slots.tolist() == [*(sides.device.slots[name] for name in "ab"), padding, padding, padding]
    assert padding not in sides.device.slots.values()
    assert padded.sample_positions.tolist() == [4, 3, 0, 0, 0]


def test_a_decode_of_fewer_tokens_than_its_graph_has_computes_those_before_again():
    """Which changes nothing: they write to no slot, and are sampled after in the row for padding."""
    sides = Sides()
    new = [new_request("a", 7), new_request("b", 5)]
    sides.build([entry(r.request_id, 0, len(r.token_ids), blocks=blocks_of(12, 9)) for r in new], new)
    scheduled = [entry("a", 7, 3, samples=3, drafts=(1, 2)), entry("b", 5, 1)]
    for states in (sides.host, sides.device):
        states.update(SchedulerOutput(1, scheduled, [], []))
    rows = StepRows.of(SchedulerOutput(1, scheduled, [], []), sides.device.slots)
    shape = GraphShape(num_reqs=3, num_tokens=9, tokens_each=3)
    batch, host = sides.inputs.build(rows, shape, shape), build_input(rows, sides.host_tables, BLOCK_SIZE)
    assert batch.places is not None
    assert batch.places.tolist() == [0, 1, 2, 5]
    for name in ("input_ids", "positions", "sample_slots", "sample_positions"):
        assert getattr(batch, name).tolist() == getattr(host, name).tolist(), name
    padded = sides.inputs.view(
        rows, num_reqs=3, num_tokens=9, num_decodes=3, num_samples=9, max_query_len=3, max_seq_len=MAX_MODEL_LEN
    )
    assert padded.input_ids.tolist()[3:5] == new[1].token_ids[3:]
    assert padded.positions.tolist()[3:6] == [3, 4, 5]
    assert padded.geometry.seq_lens.tolist() == [10, 6, 0]
    for ours, theirs in zip(padded.geometries, host.geometries, strict=True):
        own = theirs.slot_mapping.tolist()
        assert ours.slot_mapping.tolist() == [*own[:3], -1, -1, own[3], -1, -1, -1]
    assert padded.sample_slots.tolist()[3:5] == [sides.tables.padding_slot] * 2
    numbers = torch.arange(9)
    assert batch.of_graph(numbers, 4).tolist() == [0, 1, 2, 5]


def test_a_step_with_prompts_is_padded_by_one_request_that_has_all_missing_tokens():
    sides = Sides()
    new = [new_request("a", 3), new_request("b", 9), new_request("c", 2)]
    lengths = {"a": 3, "b": 5, "c": 2}
    scheduled = [entry(key, 0, size, blocks=blocks_of(8, 9), samples=int(key != "b")) for key, size in lengths.items()]
    for states in (sides.host, sides.device):
        states.update(SchedulerOutput(0, scheduled, new, []))
    rows = StepRows.of(SchedulerOutput(0, scheduled, new, []), sides.device.slots)
    sides.inputs.fill(rows, GraphShape(num_reqs=5, num_tokens=16))
    padded = sides.inputs.view(
        rows, num_reqs=5, num_tokens=16, num_decodes=0, num_samples=5, max_query_len=16, max_seq_len=MAX_MODEL_LEN
    )
    host = build_input(rows, sides.host_tables, BLOCK_SIZE)
    assert padded.input_ids.tolist() == host.input_ids.tolist() + [0] * 6
    assert padded.positions.tolist() == host.positions.tolist() + [0] * 6
    assert padded.geometry.query_start_loc.tolist() == [0, 3, 8, 10, 16, 16]
    assert padded.geometry.seq_lens.tolist() == [3, 5, 2, 0, 0]
    assert padded.geometry.slot_mapping.tolist() == host.geometry.slot_mapping.tolist() + [-1] * 6
    slots, padding = sides.device.slots, sides.tables.padding_slot
    assert padded.sample_slots.tolist() == [slots["a"], slots["c"], padding, padding, padding]
    assert padded.sampled_tokens is not None
    assert padded.sampled_tokens.tolist()[:2] == [2, 9]
    assert all(0 <= token < 16 for token in padded.sampled_tokens.tolist())


def test_sampling_parameters_reach_the_tables_of_the_device():
    sides = Sides()
    params = {"temperature": 0.7, "top_k": 9, "top_p": 0.25, "min_p": 0.125, "seed": 2**62 + 3}
    sides.build([entry("a", 0, 2, blocks=blocks_of(2, 0))], [new_request("a", 2, **params)])
    slot = sides.device.slots["a"]
    for name, value in params.items():
        assert getattr(sides.tables.sampling, name)[slot].item() == pytest.approx(value), name
    assert sides.tables.sampling.seed[slot].item() == 2**62 + 3


def test_a_greedy_and_a_random_draw_by_the_tables_are_those_of_the_host():
    sides = Sides()
    new = [new_request("a", 3, temperature=0.0), new_request("b", 2, temperature=0.9, top_k=5, seed=11)]
    scheduled = [entry(r.request_id, 0, len(r.token_ids), blocks=blocks_of(4, 9)) for r in new]
    host, device = sides.build(scheduled, new)
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(1))
    step = SchedulerOutput(0, scheduled, [], [])
    with use_platform(platform_from_facts(Facts())):
        expected = Sampler(sides.host).sample_step(step, host, logits.clone()).token_ids
    found = Sampler(sides.device).draw(
        logits.to(DEVICE), device.sample_slots, device.sample_positions, drawing=Drawing.FILTERED
    )
    assert found.tolist() == expected.tolist()
    for name, position in (("a", 3), ("b", 2)):
        slot = sides.host.slots[name]
        assert sides.device.history[slot, position].item() == sides.host.history[slot, position].item()


def test_each_token_is_drawn_by_the_random_number_of_its_own_position():
    sides, seeds = Sides(), {"a": 11, "b": -3}
    new = [new_request("a", 3, temperature=1.0, seed=11), new_request("b", 6, temperature=1.0, seed=-3)]
    lengths = {"a": 3, "b": 6}
    scheduled = [entry(name, 0, length, blocks=blocks_of(16, 9)) for name, length in lengths.items()]
    for step in range(6):
        _, device = sides.build(scheduled, new if step == 0 else None)
        rows = (device.sample_slots, device.sample_positions)
        drawn = select(SAMPLE_SLOTS, SlotSamplingProblem(1000, filters=False))(
            torch.zeros(2, 1000, device=DEVICE), *rows, *sides.tables.sampling
        )
        places = [length + step for length in lengths.values()]
        # Among 1000 equals, the number says directly which one.
        assert drawn.tolist() == [
            int(1000 * number) for number in philox_uniform(*map(torch.tensor, (list(seeds.values()), [0, 0], places)))
        ]
        scheduled = [entry(name, length + step, 1) for name, length in lengths.items()]
