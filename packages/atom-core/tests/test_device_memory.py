"""The plan of a GPU's memory: what is left for the KV cache, and the batch that is measured for it."""

from __future__ import annotations

import torch

from atom_core.worker.cache.device_memory import GRAPH_BYTES, DeviceMemory, graph_bytes
from atom_core.worker.graphs.plan import GraphsToCapture
from atom_core.worker.graphs.shapes import GraphShapes
from atom_core.worker.model.dummy_steps import dummy_geometry

GIB = 1 << 30


def make_memory(**overrides: int) -> DeviceMemory:
    sizes = {"limit": 72 * GIB, "others": GIB, "weights": 16 * GIB, "activations": 3 * GIB, "graphs": 2 * GIB}
    return DeviceMemory(**sizes | overrides)


def test_the_cache_gets_what_everything_else_leaves_of_the_limit():
    assert make_memory().for_cache == 50 * GIB
    assert make_memory(weights=90 * GIB).for_cache == 0


def test_the_plan_is_told_in_a_line():
    assert make_memory().describe() == (
        "memory = 72.00 GiB: weights 16.00 GiB, activations 3.00 GiB, graphs 2.00 GiB, others 1.00 GiB, "
        "50.00 GiB left for the KV cache"
    )


def test_the_measured_prompts_write_nothing_and_read_the_first_block_alone():
    geometry = dummy_geometry([5, 3], 4, "cpu")
    assert geometry.query_start_loc.tolist() == [0, 5, 8]
    assert geometry.seq_lens.tolist() == [5, 3]
    assert (geometry.slot_mapping == -1).all()
    assert torch.equal(geometry.block_table, torch.zeros(2, 2, dtype=torch.int32))
    assert (geometry.num_reqs, geometry.num_tokens, geometry.max_query_len) == (2, 8, 5)


def test_graphs_take_memory_each_and_for_the_largest():
    assert graph_bytes(GraphsToCapture(), 1000, 10) == 0
    assert graph_bytes(GraphsToCapture(piece_sizes=(1, 64)), 1000, 10) == 2 * GRAPH_BYTES + 64 * 10
    whole = GraphsToCapture(GraphShapes((1, 32), (64,)), (128,))
    assert graph_bytes(whole, 1000, 10) == 4 * GRAPH_BYTES + 2 * 4 * 32 * 1000 + 128 * 10
