"""Experts are placed by how many rows chose them: ranks then compute about as many, and give the same logits."""

from __future__ import annotations

import random

import pytest
import torch

from atom_kernels.protocols import SingleRank
from atom_models import BuildContext, build_model, load_model, load_weights
from atom_models.groups import Groups
from atom_models.layers import MoE
from atom_models.layers.mixture.balance import balanced, loads_of_ranks
from atom_models.layers.mixture.counting import counted_rows
from atom_models.layers.mixture.placement import ExpertPlacement
from tiny_architectures import make_tiny


@pytest.mark.parametrize("num_redundant", [0, 1, 5, 24])
def test_every_placement_is_whole_and_holds_nothing_twice(num_redundant):
    draw = random.Random(num_redundant)
    for _ in range(50):
        loads = [draw.choice([0, 1, 1, 3, 100]) for _ in range(8)]
        placement = balanced(loads, 4, num_redundant=num_redundant)
        assert placement.num_experts == 8
        assert sum(map(len, placement.slots)) == 8 + num_redundant
        assert all(len(set(of_rank)) == len(of_rank) for of_rank in placement.slots)
        assert max(map(len, placement.slots)) - min(map(len, placement.slots)) <= 1


def test_the_busiest_rank_has_little_more_than_the_others():
    loads = [900, 800, 100, 100, 100, 100, 100, 200]
    assert max(loads_of_ranks(ExpertPlacement.contiguous(8, 2), loads)) == 1900
    assert loads_of_ranks(balanced(loads, 2), loads) == [1200, 1200]


def test_the_heaviest_expert_is_held_twice():
    placement = balanced([1000, 10, 10, 10, 10, 10], 2, num_redundant=2)
    assert [0 in of_rank for of_rank in placement.slots] == [True, True]
    assert loads_of_ranks(placement, [1000, 10, 10, 10, 10, 10]) == [525, 525]


def test_a_second_copy_counts_before_a_third():
    placement = balanced([100, 60, 1, 1], 3, num_redundant=2)
    assert [sum(expert in of_rank for of_rank in placement.slots) for expert in range(4)] == [2, 2, 1, 1]


def test_room_is_made_where_all_ranks_with_room_hold_the_expert():
    """The two experts of 2.1 fill the second rank, before both get a copy of the first expert."""
    assert balanced([4, 3.9, 2.1, 2.1], 2, num_redundant=1).slots == ((0, 1, 2), (0, 3))


@pytest.mark.parametrize(("num_ranks", "num_redundant"), [(5, 0), (2, 5)])
def test_placements_that_cannot_be_are_refused(num_ranks, num_redundant):
    with pytest.raises(ValueError, match=rf"4 experts and {num_redundant} further copies cannot be placed"):
        balanced([1.0] * 4, num_ranks, num_redundant=num_redundant)


class OneOf(SingleRank):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def all_reduce(self, x):
        return x


def test_a_placement_by_counted_rows_gives_the_same_sums(tmp_path):
    loaded = load_model(make_tiny("deepseek_v3", tmp_path / "m"))
    draw = random.Random(0)
    with counted_rows(loaded.model) as counts:
        loaded.logits([[draw.randrange(3, 384) for _ in range(60)]])
    loaded.logits([[5, 6, 7]])
    mixtures = [layer for layer in loaded.model.modules() if isinstance(layer, MoE)]
    assert [int(found.sum()) for found in counts.values()] == [60 * 3] * len(mixtures)

    def place(name, num_experts, num_ranks):
        loads = counts[name].tolist()
        placement = balanced(loads, num_ranks, num_redundant=2)
        assert max(loads_of_ranks(placement, loads)) <= max(
            loads_of_ranks(ExpertPlacement.contiguous(num_experts, num_ranks), loads)
        )
        return placement

    x, totals = torch.randn(7, 64, generator=torch.Generator().manual_seed(0)), None
    for rank in range(2):
        context = BuildContext(groups=Groups(OneOf(rank, 2)).spreading_experts(), place_experts=place)
        model = build_model(loaded.checkpoint, context)
        load_weights(model, loaded.checkpoint, progress=False)
        sums = [layer(x) for layer in model.modules() if isinstance(layer, MoE)]
        totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
    for total, layer in zip(totals, mixtures, strict=True):
        assert torch.allclose(total, layer(x), atol=1e-5)
