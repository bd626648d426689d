"""Which steps with drafts are captured whole, and which of them a step is padded to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from atom_core.config import CompileConfig
from atom_core.speculation import SpeculationConfig
from atom_core.worker.cache.device_memory import GRAPH_BYTES, graph_bytes
from atom_core.worker.graphs.plan import GraphsToCapture, plan_graphs
from atom_core.worker.graphs.shapes import GraphShape, GraphShapes, draft_shapes
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_core.worker.steps.device_inputs import DeviceInputs
from repeated_work import Repeated
from toy_drafts import config_of

MODEL: Any = SimpleNamespace(why_not_capturable=lambda: None, captures_prompts=True, tower=None)


def rows(lengths: list[int], num_samples: list[int] | None = None) -> StepRows:
    """A step of requests that have 40 tokens."""
    counts = np.array(lengths)
    sampled = counts if num_samples is None else np.array(num_samples)
    sampling = np.repeat(np.arange(len(counts)), sampled)
    behind = np.cumsum(sampled)[sampling] - np.arange(1, len(sampling) + 1)
    starts = np.cumsum([0, *lengths])
    return StepRows(
        np.arange(len(counts)),
        np.full(len(counts), 40),
        counts,
        starts,
        sampled,
        sampling,
        behind,
        np.zeros_like(counts),
    )


def test_each_number_of_drafts_is_captured_for_few_requests_and_for_powers_of_two_and_few_of_many_numbers():
    assert draft_shapes((1, 2), 2, 100) == (
        *(GraphShape(1, 2, 2), GraphShape(1, 3, 3)),
        *(GraphShape(2, 4, 2), GraphShape(2, 6, 3)),
    )
    assert [shape.tokens_each for shape in draft_shapes((1,), 9, 100)] == [2, 3, 5, 10]
    sizes = (1, 8, 12, 16, 24, 32, 64, 128)
    assert {shape.num_reqs for shape in draft_shapes(sizes, 1, 128)} == {1, 8, 12, 16, 32, 64}
    assert [shape.num_tokens for shape in draft_shapes((2, 8), 3, 16)] == [4, 6, 8, 16]


def test_a_step_with_equal_drafts_is_padded_to_the_next_number_of_requests():
    shapes = GraphShapes((1, 4), (64,), draft_shapes=draft_shapes((1, 4), 2, 100))
    assert shapes.of_step(rows([3])) == GraphShape(1, 3, 3)
    assert shapes.of_step(rows([3, 3])) == GraphShape(4, 12, 3)
    assert shapes.of_step(rows([2, 2, 2, 2])) == GraphShape(4, 8, 2)
    assert shapes.of_step(rows([1, 1])) == GraphShape(4, 4)


@pytest.mark.parametrize(
    ("lengths", "num_samples"),
    [([4], None), ([3] * 5, None), ([3, 3], [3, 1]), ([3, 20], [3, 1]), ([3, 5], [3, 3])],
    ids=str,
)
def test_steps_with_more_drafts_or_with_prompts_have_no_shape(lengths, num_samples):
    shapes = GraphShapes((1, 4), (64,), draft_shapes=draft_shapes((1, 4), 2, 100))
    assert shapes.of_step(rows(lengths, num_samples)) is None


def test_a_step_with_unequal_drafts_is_padded_with_tokens_that_its_requests_have():
    shapes = GraphShapes((1, 4), (64,), draft_shapes=draft_shapes((1, 4), 2, 100))
    assert shapes.of_step(rows([3, 2])) == GraphShape(4, 12, 3)
    assert shapes.of_step(rows([1, 2])) == GraphShape(4, 8, 2)
    young = dataclasses.replace(rows([3, 1]), starts=np.array([40, 1]))
    assert shapes.of_step(young) is None
    old = dataclasses.replace(rows([3, 1]), starts=np.array([40, 2]))
    assert shapes.of_step(old) == GraphShape(4, 12, 3)


def test_all_tokens_of_a_decode_are_sampled_after_and_the_last_of_a_prompt():
    shapes = (GraphShape(4, 12, 3), GraphShape(4, 4), GraphShape(16, 64))
    assert [(shape.is_decode, shape.num_samples) for shape in shapes] == [(True, 12), (True, 4), (False, 16)]
    whole = GraphsToCapture(GraphShapes((4,), draft_shapes=draft_shapes((4,), 2, 100)))
    assert graph_bytes(whole, 1000, 10) == 3 * GRAPH_BYTES + 2 * 4 * 12 * 1000 + 12 * 10


def test_a_captured_decode_with_drafts_is_told_to_attention_as_one_of_so_many_tokens():
    tables = DeviceTables(4, 64, block_size=16, num_groups=1, device="cpu")
    inputs = DeviceInputs(tables, block_size=16, max_num_seqs=5, max_num_tokens=32)
    seen: list[ModelInput] = []

    def run_model(batch: ModelInput) -> tuple[torch.Tensor]:
        seen.append(batch)
        return (torch.zeros(len(batch.sample_slots), 8),)

    graphs = StepGraphs(
        inputs,
        run_model=run_model,
        draw=lambda logits_nV, batch, drawing: (logits_nV.argmax(1),),
        shapes=GraphShapes((), draft_shapes=draft_shapes((4,), 1, 100)),
        max_seq_len=64,
        capture=Repeated,
    )
    assert graphs.capture_next()
    geometry = seen[0].geometry
    assert (geometry.num_reqs, geometry.num_tokens, geometry.num_decodes) == (4, 8, 4)
    assert (geometry.max_query_len, geometry.max_decode_len, geometry.max_seq_len) == (2, 2, 64)
    assert geometry.query_start_loc.tolist() == [0, 2, 4, 6, 8]
    assert seen[0].sample_slots.tolist() == [tables.padding_slot] * 8
    assert (geometry.slot_mapping == -1).all()


@pytest.mark.parametrize(("method", "num_shapes"), [("mtp", 3 + 3 * 2), ("ngram", 3)])
def test_drafts_of_a_model_have_graphs(tiny_llama: Path, method: Any, num_shapes: int):
    config = config_of(tiny_llama, dtype="float32", max_num_seqs=4, max_num_batched_tokens=40)
    compiled = CompileConfig(graph_mode="full", capture_sizes=(1, 2, 4))
    speculation = SpeculationConfig(method=method, num_tokens=2)
    plan = plan_graphs(dataclasses.replace(config, compile=compiled, speculation=speculation), MODEL, 1000)

    assert len(plan.shapes.all) == num_shapes
