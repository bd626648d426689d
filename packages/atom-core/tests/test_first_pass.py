"""What a whole draft model takes in behind a step: the step's tokens, and the one that was sampled behind them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from atom_core.worker.drafting.first_pass import FirstPass, with_next, with_next_captured
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.steps.batch import ModelInput, StepRows, build_input

BLOCK_SIZE, MOST = 4, 24


def make_tables() -> HostTables:
    """Three requests of up to 24 tokens; request r has tokens 100 r, 100 r + 1 ... in blocks 10 r + 7, 10 r + 6 ..."""
    tables = HostTables(3, MOST, block_size=BLOCK_SIZE, num_groups=2)
    for slot in range(3):
        tables.write("history", (slot, 0), [100 * slot + place for place in range(MOST)])
        for group in range(2):
            blocks = [100 * group + 10 * slot + 7 - place for place in range(MOST // BLOCK_SIZE)]
            tables.write("block_tables", (group, slot, 0), blocks)
    return tables


def make_batch(tables: HostTables, starts: list[int], lengths: list[int], num_samples: list[int]) -> ModelInput:
    counts, sampled = np.array(lengths), np.array(num_samples)
    sampling = np.repeat(np.arange(len(counts)), sampled)
    behind = np.cumsum(sampled)[sampling] - np.arange(1, len(sampling) + 1)
    query_starts = np.concatenate([[0], np.cumsum(counts)])
    rows = StepRows(
        np.arange(len(counts)), np.array(starts), counts, query_starts, sampled, sampling, behind, np.zeros_like(counts)
    )
    return build_input(rows, tables, BLOCK_SIZE)


def slots_of(group: int, request: int, positions: range) -> list[int]:
    return [(100 * group + 10 * request + 7 - place // BLOCK_SIZE) * BLOCK_SIZE + place % 4 for place in positions]


def test_those_who_get_drafts_have_one_token_more_and_the_others_their_own():
    """A decode with a draft, the end of a prompt, and a part of one."""
    tables = make_tables()
    batch = make_batch(tables, [9, 2, 5], [2, 5, 3], [2, 1, 0])
    first = with_next(batch, tables, BLOCK_SIZE, np.array([0, 1]))
    positions = [range(9, 12), range(2, 8), range(5, 8)]
    assert first.positions.tolist() == [place for each in positions for place in each]
    expected = [100 * request + place for request, each in enumerate(positions) for place in each]
    assert first.input_ids.tolist() == expected
    for group, geometry in enumerate(first.geometries):
        slots = [slot for request, each in enumerate(positions) for slot in slots_of(group, request, each)]
        assert geometry.slot_mapping.tolist() == slots
        assert geometry.query_start_loc.tolist() == [0, 3, 9, 12]
        assert geometry.seq_lens.tolist() == [12, 8, 8]
        assert (geometry.num_reqs, geometry.num_tokens, geometry.num_decodes) == (3, 12, 1)
        assert (geometry.max_query_len, geometry.max_seq_len, geometry.max_decode_len) == (6, 12, 3)
        assert geometry.block_table.shape == (3, 3)
    # The tokens that were computed last are the second of the decode, and the last of the prompt.
    rows = first.guessing_rows(torch.tensor([1, 6]), torch.tensor([0, 1]))
    assert first.positions[rows].tolist() == [11, 7]
    assert first.num_ahead == 1


def captured(tables: HostTables, batch: ModelInput, each: int, numbers: list[int]) -> FirstPass:
    num_reqs = len(numbers)
    batch = dataclasses.replace(batch, graph=GraphShape(num_reqs, num_reqs * each, each))
    batch = dataclasses.replace(
        batch, geometries=tuple(dataclasses.replace(one, max_seq_len=MOST) for one in batch.geometries)
    )
    return with_next_captured(batch, tables, BLOCK_SIZE, torch.arange(num_reqs), torch.tensor(numbers))


@pytest.mark.parametrize("each", [1, 3])
def test_a_captured_pass_has_the_tokens_of_one_that_was_not_captured(each):
    tables = make_tables()
    batch = make_batch(tables, [9, 2, 12], [each] * 3, [each] * 3)
    expected, found = with_next(batch, tables, BLOCK_SIZE, np.arange(3)), captured(tables, batch, each, [2, 1, 3])
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        assert mine.tolist() == theirs.tolist()
    for mine, theirs in zip(found.geometries, expected.geometries, strict=True):
        assert mine.slot_mapping.tolist() == theirs.slot_mapping.tolist()
        assert mine.query_start_loc.tolist() == theirs.query_start_loc.tolist()
        assert mine.seq_lens.tolist() == theirs.seq_lens.tolist()
        assert (mine.num_decodes, mine.max_query_len, mine.max_decode_len) == (3, each + 1, each + 1)
    last, requests = torch.arange(3) * each, torch.arange(3)
    assert found.guessing_rows(last, requests).tolist() == expected.guessing_rows(last, requests).tolist()


def test_who_has_no_room_in_a_captured_pass_computes_the_token_before_once_more_and_keeps_what_the_step_did():
    """The first has room, the second has none, and the third pads the batch: nothing of it has a slot."""
    tables = make_tables()
    batch = make_batch(tables, [9, 22, 0], [2, 2, 2], [2, 2, 2])
    for geometry in batch.geometries:
        geometry.slot_mapping[4:] = -1
    first = captured(tables, batch, 2, [1, 0, 0])
    assert first.positions.tolist() == [9, 10, 11, 21, 22, 23, 0, 1, 2]
    for group, geometry in enumerate(first.geometries):
        own = [*slots_of(group, 0, range(9, 12)), -1, *slots_of(group, 1, range(22, 24))]
        assert geometry.slot_mapping.tolist() == [*own, -1, -1, -1]
        assert geometry.seq_lens.tolist() == [12, 24, 3]
        assert int(geometry.seq_lens.max()) <= MOST


def test_tensors_of_a_pass_begin_at_multiples_of_16_bytes():
    """Kernels are compiled for that."""
    tables = make_tables()
    batch = make_batch(tables, [9, 2, 12], [2] * 3, [2] * 3)
    for first in (with_next(batch, tables, BLOCK_SIZE, np.arange(3)), captured(tables, batch, 2, [2, 1, 3])):
        for geometry in first.geometries:
            tensors = (geometry.query_start_loc, geometry.seq_lens, geometry.slot_mapping, geometry.block_table)
            assert all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in tensors)
        assert first.positions.data_ptr() % 16 == 0
