"""Adapters of linears: equal to merged weights in float32, row by row, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atom_models import load_model
from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.loaded import LoadedAdapters
from atom_models.adapters.step import MOST_TOGETHER, AdapterStep
from atom_models.forward_context import ForwardContext, set_forward_context
from atom_models.groups import Groups
from atom_models.layers import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    VocabularyEmbedding,
    summed,
)
from single_layers import fill, make_context
from thread_ranks import Group

RANK = 3


def qkv(context):
    return QKVParallelLinear(24, head_dim=8, num_heads=4, num_kv_heads=2, context=context, prefix="a.qkv", bias=True)


def gate_up(context):
    return MergedColumnParallelLinear(24, {"gate": 16, "up": 16}, context, prefix="m.gate_up")


def down(context):
    return RowParallelLinear(24, 16, context, prefix="m.down")


LAYERS = {"qkv": qkv, "gate_up": gate_up, "down": down}


def make_layer(make, **context):
    layer = make(replace(make_context(**context), takes_adapters=True))
    fill(layer)
    return layer


def random_adapter(layer, seed, *, leave_out=()):
    """Matrices for the parts of a layer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {part.name: part.shape for part in layer.adapted.parts if part.name not in leave_out}
    return Adapter(
        {
            name: LowRank(
                torch.randn(RANK + seed, inputs, generator=generator),
                torch.randn(outputs, RANK + seed, generator=generator),
            )
            for name, (inputs, outputs) in shapes.items()
        }
    )


def added(layer, adapter, x):
    """What an adapter adds to a layer's outputs, by two plain products for each part."""
    zeros = {part.name: torch.zeros(len(x), part.shape[1]) for part in layer.adapted.parts}
    return torch.cat(
        [
            (x @ adapter.matrices[name].a.T) @ adapter.matrices[name].b.T if name in adapter.matrices else none
            for name, none in zeros.items()
        ],
        dim=-1,
    )


def run(layer, x, ids):
    step = AdapterStep.of(np.array(ids), "cpu")
    with set_forward_context(ForwardContext({}, {}, adapters=step)):
        return summed(layer(x))


@pytest.mark.parametrize("num_others", [0, MOST_TOGETHER], ids=["one kernel for all", "products for each"])
@pytest.mark.parametrize("fixed", [False, True], ids=["", "at fixed addresses"])
@pytest.mark.parametrize("kind", LAYERS)
def test_each_row_gets_what_its_own_adapter_adds(kind, fixed, num_others):
    layer = make_layer(LAYERS[kind])
    if fixed:
        layer.adapted.fix(9, RANK + 2)
    left_out = layer.adapted.parts[0].name if len(layer.adapted.parts) > 1 else ""
    adapters = {7: random_adapter(layer, 0), 9: random_adapter(layer, 1, leave_out=(left_out,))}
    for adapter_id, adapter in adapters.items():
        layer.adapted.attach(adapter_id, adapter)
    ids = [7, 0, 9, 7, 9, 9, *[0] * num_others]
    x = torch.randn(len(ids), 24)
    expected = summed(layer(x))
    for adapter_id, adapter in adapters.items():
        rows = [row for row, one in enumerate(ids) if one == adapter_id]
        expected[rows] += added(layer, adapter, x[rows])
    assert torch.allclose(run(layer, x, ids), expected, atol=1e-4)


@pytest.mark.parametrize("num_others", [0, MOST_TOGETHER], ids=["few rows", "many rows"])
def test_each_row_of_a_table_gets_what_its_own_adapter_adds(num_others):
    table = make_layer(lambda context: VocabularyEmbedding(12, 8, context, prefix="e.words", adaptable=True))
    adapters = {1: random_adapter(table, 0), 5: random_adapter(table, 1)}
    for adapter_id, adapter in adapters.items():
        table.adapted.attach(adapter_id, adapter)
    # The last one has a place that no adapter of this table was in.
    ids = [1, 0, 5, 1, 5, *[0] * num_others, 6]
    rows = torch.arange(len(ids)) * 7 % 12
    expected = table(rows)
    for place, (adapter_id, row) in enumerate(zip(ids, rows.tolist(), strict=True)):
        if adapter_id in adapters:
            matrices = adapters[adapter_id].matrices["e.words"]
            expected[place] += matrices.b @ matrices.a[:, row]
    assert torch.allclose(run(table, rows, ids), expected, atol=1e-5)


def test_a_table_takes_adapters_only_where_it_is_adaptable():
    assert make_layer(lambda context: VocabularyEmbedding(12, 8, context, prefix="e.words")).adapted is None


@pytest.mark.parametrize("num_tokens", [1, MOST_TOGETHER, MOST_TOGETHER + 1])
def test_few_rows_run_together(num_tokens):
    step = AdapterStep.of(np.array([1, *[0] * (num_tokens - 1)]), "cpu")
    assert (step.together, bool(step.groups)) == (num_tokens <= MOST_TOGETHER, num_tokens > MOST_TOGETHER)


def test_a_step_of_no_adapters_is_none():
    assert AdapterStep.of(np.zeros(3, dtype=np.int64), "cpu") is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("num_tokens", [3, MOST_TOGETHER + 3])
def test_no_step_waits_for_the_one_before(num_tokens):
    torch.cuda.set_sync_debug_mode("error")
    try:
        step = AdapterStep.of(np.arange(num_tokens) % 3, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.places.tolist() == [token % 3 for token in range(num_tokens)]


def test_rows_without_an_adapter_are_as_in_a_model_without_any():
    layer = make_layer(qkv)
    layer.adapted.attach(1, random_adapter(layer, 0))
    layer.adapted.attach(2, random_adapter(layer, 1))
    x = torch.randn(4, 24)
    plain = layer(x)
    assert torch.equal(run(layer, x, [0, 1, 0, 2])[[0, 2]], plain[[0, 2]])


def test_an_adapter_whose_numbers_overflow_leaves_the_rows_of_others_alone():
    layer = make_layer(down)
    layer.adapted.attach(1, random_adapter(layer, 0))
    layer.adapted.attach(2, Adapter({"m.down": LowRank(torch.full((2, 24), 3e38), torch.ones(16, 2))}))
    x = torch.ones(3, 24)
    result = run(layer, x, [1, 2, 0])
    assert result[[0, 2]].isfinite().all()
    assert not result[1].isfinite().any()


@pytest.mark.parametrize("fixed", [False, True], ids=["", "at fixed addresses"])
def test_an_adapter_that_was_let_go_adds_nothing(fixed):
    layer = make_layer(gate_up)
    if fixed:
        layer.adapted.fix(2, RANK + 2)
    for adapter_id in (1, 2):
        layer.adapted.attach(adapter_id, random_adapter(layer, adapter_id))
    layer.adapted.detach(1)
    x = torch.randn(2, 24)
    result = run(layer, x, [1, 2])
    assert torch.allclose(result[0], layer(x)[0], atol=1e-5)
    assert not torch.allclose(result[1], layer(x)[1], atol=1e-1)


def test_work_that_is_repeated_reads_adapters_that_came_later_and_the_places_of_then():
    layer, x, places = make_layer(qkv), torch.randn(3, 24), torch.zeros(3, dtype=torch.int64)
    layer.adapted.fix(2, RANK + 2)

    def work():
        with set_forward_context(ForwardContext({}, {}, adapters=AdapterStep.captured(places))):
            return layer(x)

    assert torch.allclose(work(), layer(x))
    layer.adapted.attach(2, adapter := random_adapter(layer, 2))
    places.copy_(torch.tensor([2, 0, 2]))
    expected = layer(x)
    expected[[0, 2]] += added(layer, adapter, x[[0, 2]])
    assert torch.allclose(work(), expected, atol=1e-4)
    layer.adapted.detach(2)
    layer.adapted.attach(2, adapter := random_adapter(layer, 0))
    expected = layer(x)
    expected[[0, 2]] += added(layer, adapter, x[[0, 2]])
    assert torch.allclose(work(), expected, atol=1e-4)


@pytest.mark.parametrize("kind", LAYERS)
def test_ranks_share_an_adapter_as_they_share_the_linear(kind):
    whole = make_layer(LAYERS[kind])
    adapter, x, group = random_adapter(whole, 0), torch.randn(3, 24), Group(2)
    whole.adapted.attach(1, adapter)

    def of_rank(rank):
        layer = make_layer(LAYERS[kind], groups=Groups(group.as_rank(rank)))
        layer.adapted.attach(1, adapter)
        first, last = layer.adapted.parts[0].columns
        return run(layer, x[:, first:last].contiguous(), [1, 0, 1]), layer.adapted.parts

    expected = run(whole, x, [1, 0, 1])
    for result, parts in group.run(of_rank):
        places = [
            torch.arange(begin + first, begin + last)
            for part, begin in zip(parts, [part.begin for part in whole.adapted.parts], strict=True)
            for first, last in part.rows
        ]
        assert torch.allclose(result, expected[:, torch.cat(places)], atol=1e-4)


def test_numbers_that_the_dtype_has_no_room_for_are_refused():
    layer = make_layer(down, dtype=torch.float16)
    with pytest.raises(AdapterError, match=r"m\.down hold numbers that torch\.float16 has no room for"):
        layer.adapted.attach(1, Adapter({"m.down": LowRank(torch.full((1, 24), 1e6), torch.ones(16, 1))}))


def test_a_model_that_was_built_without_adapters_takes_none(tiny_llama):
    loaded = load_model(tiny_llama, progress=False)
    with pytest.raises(AdapterError, match="no linear of this model takes adapters"):
        LoadedAdapters(loaded.model, loaded.context, max_loras=2, max_rank=16)
