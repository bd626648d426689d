"""Experts move between ranks between two steps: the sums stay, and weights change where they lie."""

from __future__ import annotations

import random

import pytest
import torch

from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import Experts, MoE, MoEConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.mixture.balance import balanced, place_with_copies
from atom_models.layers.mixture.moves import move_slots, sent_slots, settled
from atom_models.layers.mixture.placement import ExpertPlacement, SlotsOfIds
from atom_models.layers.mixture.rebalancing import ExpertBalancer
from atom_models.quantization import choose_quantization
from atom_models.weights import load_named_weights
from thread_ranks import Group

E, K, D, I = 8, 3, 32, 32  # noqa: E741


def context_of(ranks, num_redundant, **options):
    groups = Groups(ranks).spreading_experts()
    return BuildContext(groups=groups, place_experts=place_with_copies(num_redundant), **options)


def weights_of(model):
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(one.shape, generator=generator) * 0.3
        for layer in loadable(model)
        for name, one in expected_weights(layer).items()
    }


def inputs(num_tokens=9):
    generator = torch.Generator().manual_seed(3)
    x, gates = torch.randn(num_tokens, D, generator=generator), torch.rand(num_tokens, K, generator=generator)
    return x, gates, torch.rand(num_tokens, E, generator=generator).topk(K).indices.to(torch.int32)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize(
    ("config", "quantization"),
    [({}, None), ({"expert_bias": True}, None), ({}, "int4"), ({}, "mxfp4")],
    ids=["plain", "biases", "int4", "mxfp4"],
)
def test_sums_stay_through_any_moves(config, quantization, num_ranks):
    options = {} if quantization is None else {"quantization": choose_quantization({}, quantization)}
    moe = MoEConfig(E, K, D, I, **config)
    whole = Experts(moe, BuildContext(**options), prefix="m.experts")
    tensors = weights_of(whole)
    load_named_weights(whole, tensors.items(), "test")
    expected = whole(*inputs())
    draw = random.Random(num_ranks)
    placements = [balanced([draw.choice([0, 1, 9, 90]) for _ in range(E)], num_ranks, num_redundant=4) for _ in "12345"]

    group = Group(num_ranks)

    def work(rank):
        ranks = group.as_rank(rank)
        experts = Experts(moe, context_of(ranks, 4, **options), prefix="m.experts")
        load_named_weights(experts, tensors.items(), "test")
        places = [one.data_ptr() for one in experts.movable()]
        sums = [experts(*inputs())]
        for placement in placements:
            experts.move(placement)
            sums.append(experts(*inputs()))
        assert [one.data_ptr() for one in experts.movable()] == places
        return sums

    for parts in zip(*group.run(work), strict=True):
        torch.testing.assert_close(sum(parts), expected, atol=1e-4, rtol=1e-4)


def test_a_balancer_counts_the_last_steps_of_an_interval_and_evens_them_out():
    config = MoEConfig(E, 1, D, I)
    whole = MoE(config, BuildContext(), prefix="m")
    tensors = weights_of(whole)
    # The rows below choose experts 0 and 1, which lie on the first of two ranks; in the other rows, 6 and 7.
    tensors["m.gate.weight"] = torch.eye(E, D) * 10
    load_named_weights(whole, tensors.items(), "test")
    late, early = torch.eye(E, D)[[0, 0, 1, 1]], torch.eye(E, D)[[6, 6, 6, 7]]

    group = Group(2)

    def work(rank):
        ranks = group.as_rank(rank)
        moe = MoE(config, context_of(ranks, 0), prefix="m")
        load_named_weights(moe, tensors.items(), "test")
        balancer = ExpertBalancer(moe, ranks, "cpu", window=2, interval=4)
        found = []
        for x in (early, early, late, late, late):
            balancer.before_step()
            found.append((moe(x), balancer.num_moves))
        return found, moe.experts.placement

    (first, placement), (second, _) = group.run(work)
    assert [moves for _, moves in first] == [0, 0, 0, 0, 1]
    assert [sum(expert in of_rank for expert in (0, 1)) for of_rank in placement.slots] == [1, 1]
    for x, (result, _), (same, _) in zip((early, early, late, late, late), first, second, strict=True):
        torch.testing.assert_close(result, whole(x), atol=1e-5, rtol=1e-5)
        assert torch.equal(result, same)


def test_two_copies_share_rows_evenly_where_there_could_be_three():
    placement = ExpertPlacement(((0, 1), (0, 2), (1, 3)))
    ids = torch.zeros(60, 1, dtype=torch.int32)
    slots = [SlotsOfIds(placement, rank, "cpu", batch_invariant=False)(ids) for rank in range(3)]
    assert [int((found < 2).sum()) for found in slots] == [30, 30, 0]


def test_experts_that_stay_keep_their_slots():
    old = ExpertPlacement(((0, 1, 2), (3, 4, 5)))
    assert settled(ExpertPlacement(((0, 2, 5), (1, 3, 4))), old).slots == ((0, 5, 2), (3, 4, 1))


def test_an_expert_that_several_ranks_want_is_sent_once():
    old = ExpertPlacement(((0, 1), (2, 3), (4, 5)))
    assert sent_slots(old, ExpertPlacement(((0, 1), (0, 3), (0, 2)))) == [[0], [0], []]


def test_ranks_send_one_expert_in_each_round():
    old, new, group = ExpertPlacement(((0, 1), (2, 3))), ExpertPlacement(((0, 2), (1, 3))), Group(2)
    rows = [torch.arange(2.0).view(2, 1).expand(2, 5) + 2 * rank for rank in range(2)]
    rows = [tensor.contiguous() for tensor in rows]
    group.run(lambda rank: move_slots(rows[rank], old, settled(new, old), group.as_rank(rank)))
    assert [tensor[:, 0].tolist() for tensor in rows] == [[0, 2], [1, 3]]
    assert group.gathered_bytes == [5 * 4] * 2


@pytest.mark.parametrize("slots", [((0, 1, 2), (3,)), ((0, 0), (1, 2, 3)), ((0, 1), (1, 1))])
def test_ranks_cannot_come_to_hold_more_or_one_twice(slots):
    with pytest.raises(ValueError, match=r"each has as many slots as before, and no expert twice|no rank holds"):
        settled(ExpertPlacement(slots), ExpertPlacement(((0, 1), (2, 3))))


@pytest.mark.parametrize(("num_redundant", "num_ranks"), [(1, 2), (10, 2)])
def test_copies_that_ranks_cannot_hold_evenly_are_refused(num_redundant, num_ranks):
    with pytest.raises(ValueError, match=rf"m: 8 experts and {num_redundant} further copies \(num_redundant_experts\)"):
        place_with_copies(num_redundant)("m", E, num_ranks)


def test_weights_without_a_row_for_each_expert_are_refused_by_name():
    experts = Experts(MoEConfig(E, K, D, I), context_of(Group(2).as_rank(0), 0), prefix="m.experts")
    with pytest.raises(ValueError, match=r"m\.experts: these weights cannot be moved .* leave enable_eplb out"):
        experts.movable()
