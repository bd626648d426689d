"""Whole experts on ranks: whichever rank holds which of them, the sum over ranks is what one rank computes."""

from __future__ import annotations

import random

import pytest
import torch

from atom_models import (
    BuildContext,
    CheckpointError,
    build_model,
    load_weights,
    num_idle_weights,
    open_checkpoint,
)
from atom_models.groups import UNSHARED, Groups, Stage
from atom_models.layers import Experts, MoEConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.mixture.placement import ExpertPlacement, SlotsOfIds, place_contiguously
from atom_models.quantization import choose_quantization
from atom_models.requirements import check_shared
from atom_models.requirements.sharing import OneOf, groups_of
from atom_models.weights import load_dummy_weights, load_named_weights
from converted_gguf import write_gguf
from quantized_checkpoints import PUBLISHED, write_quantized
from tiny_architectures import make_tiny

E, K, D, I = 7, 3, 32, 12  # noqa: E741


def context_of(placement, rank, **options):
    """What rank `rank` of a placement builds with; without a placement it is alone."""
    if placement is None:
        return BuildContext(**options)
    groups = Groups(OneOf(rank, len(placement.slots))).spreading_experts()
    return BuildContext(groups=groups, place_experts=lambda *_: placement, **options)


def make_experts(placement=None, rank=0, quantization=None, **config):
    options = {} if quantization is None else {"quantization": choose_quantization({}, quantization)}
    return Experts(MoEConfig(E, K, D, I, **config), context_of(placement, rank, **options), prefix="m.experts")


def inputs(num_tokens=9):
    generator = torch.Generator().manual_seed(3)
    x, gates = torch.randn(num_tokens, D, generator=generator), torch.rand(num_tokens, K, generator=generator)
    return x, gates, torch.rand(num_tokens, E, generator=generator).topk(K).indices.to(torch.int32)


def any_placement(draw):
    """Experts in any order on two to four ranks, some of them more than once."""
    ids = [*range(E), *(draw.randrange(E) for _ in range(draw.randrange(5)))]
    draw.shuffle(ids)
    ends = sorted(draw.sample(range(1, len(ids)), draw.randrange(1, 4)))
    runs = zip([0, *ends], [*ends, len(ids)], strict=True)
    return ExpertPlacement(tuple(tuple(ids[first:last]) for first, last in runs))


def tensors_of(layer):
    """Random weights under all names that a layer on one rank takes."""
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(one.shape, generator=generator) * 0.3 for name, one in expected_weights(layer).items()}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"expert_bias": True},
        {"expert_bias": True, "fused_transposed": True, "fused_in_turns": True, "hidden_act": "swiglu_oai"},
        {"quantization": "int4"},
        {"quantization": "mxfp4"},
    ],
    ids=["single", "biases", "fused", "int4", "mxfp4"],
)
def test_any_placement_gives_the_sum_of_one_rank(config):
    whole, draw = make_experts(**config), random.Random(1)
    tensors = tensors_of(whole)
    load_named_weights(whole, tensors.items(), "test")
    expected = whole(*inputs())
    for placement in (ExpertPlacement.contiguous(E, 3), *(any_placement(draw) for _ in range(12))):
        total = torch.zeros_like(expected)
        for rank in range(len(placement.slots)):
            layer = make_experts(placement, rank, **config)
            load_named_weights(layer, tensors.items(), "test")
            total += layer(*inputs())
        assert torch.allclose(total, expected, atol=1e-4), placement


def test_random_weights_are_those_of_one_rank_wherever_experts_are():
    whole, placement = make_experts(), ExpertPlacement.contiguous(E, 3)
    layers = [make_experts(placement, rank) for rank in range(3)]
    for layer in (whole, *layers):
        load_dummy_weights(layer, seed=4)
    total = torch.stack([layer(*inputs()) for layer in layers]).sum(0)
    assert torch.allclose(total, whole(*inputs()), atol=1e-9)


def test_runs_of_experts_that_do_not_come_out_even_differ_by_one():
    assert ExpertPlacement.contiguous(7, 3).slots == ((0, 1, 2), (3, 4), (5, 6))


def test_more_ranks_than_experts_are_refused_by_the_name_of_the_mixture():
    with pytest.raises(ValueError, match=r"m\.mlp: there are 4 experts, and each of 5 .* needs one"):
        place_contiguously("m.mlp", 4, 5)


@pytest.mark.parametrize(
    ("slots", "says"),
    [(((0, 1), ()), "rank 1 of 2 holds no expert"), (((0, 3), (1,)), "no rank holds expert 2")],
)
def test_a_placement_that_leaves_something_out_is_refused(slots, says):
    with pytest.raises(ValueError, match=says):
        ExpertPlacement(slots)


def test_a_placement_of_other_experts_than_the_layers_is_refused():
    with pytest.raises(ValueError, match=r"m\.experts: 6 experts are placed on 2 ranks, and there are 7 experts"):
        make_experts(ExpertPlacement.contiguous(6, 2))


def test_rows_take_the_copies_of_an_expert_in_turn():
    placement = ExpertPlacement(((0, 1), (1, 0, 1)))
    ids = torch.tensor([[0], [0], [1], [1], [1]], dtype=torch.int32)
    found = [SlotsOfIds(placement, rank, "cpu", batch_invariant=False)(ids).flatten().tolist() for rank in range(2)]
    # The rows are turn 0, 1, 2, 0, 1; expert 1 has three copies.
    assert found == [[0, 2, 2, 1, 2], [3, 1, 2, 3, 0]]


def test_a_row_that_may_not_depend_on_others_takes_the_first_copy():
    slots_of = SlotsOfIds(ExpertPlacement(((0, 1), (1,))), 0, "cpu", batch_invariant=True)
    assert slots_of(torch.tensor([[1], [1]], dtype=torch.int32)).tolist() == [[1], [1]]


def test_kernels_are_told_of_all_slots_that_rows_go_to():
    placement = ExpertPlacement(((0, 1, 2, 3), (4, 5, 6, 0, 0)))
    problems = [make_experts(placement, rank).problem for rank in range(2)]
    assert [(problem.num_experts, problem.num_absent) for problem in problems] == [(4, 5), (5, 4)]


def test_a_part_of_the_experts_is_as_idle_as_all_of_them():
    placement = ExpertPlacement.contiguous(E, 2)
    layers = [make_experts(placement, rank) for rank in range(2)]
    numbers = [4 * 3 * D * I, 3 * 3 * D * I]
    assert [num_idle_weights(layer) for layer in layers] == [count * (E - K) // E for count in numbers]


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "qwen3_moe"])
def test_ranks_read_their_own_experts_alone(family, tmp_path):
    checkpoint = open_checkpoint(make_tiny(family, tmp_path / "m"))
    expected = []
    for rank in range(2):
        context = BuildContext(groups=Groups(OneOf(rank, 2)).spreading_experts())
        model = build_model(checkpoint, context)
        load_weights(model, checkpoint, progress=False)
        layers = [layer for layer in loadable(model) if isinstance(layer, Experts)]
        expected.append({name for layer in layers for name in expected_weights(layer)})
    # One tensor holds all experts of gpt_oss.
    assert bool(expected[0] & expected[1]) == (family == "gpt_oss")


def test_formats_that_ranks_cannot_cut_are_held_as_they_are_stored(tmp_path):
    """An expert's 32 inputs are one group of mxfp4: half of it has no scale of its own."""
    plain = make_tiny("qwen3_moe", tmp_path / "plain", moe_intermediate_size=32)
    folder, _ = write_quantized(tmp_path, plain, PUBLISHED["mxfp4"])
    checkpoint = open_checkpoint(folder)
    held = []
    parts = Groups(OneOf(1, 2))
    for groups in (parts, parts.spreading_experts()):
        model = build_model(checkpoint, BuildContext(groups=groups))
        held.append({layer.problem.is_plain for layer in loadable(model) if isinstance(layer, Experts)})
    assert held == [{True}, {False}]


def test_one_rank_places_nothing():
    layer = Experts(MoEConfig(E, K, D, I), BuildContext(groups=UNSHARED.spreading_experts()), prefix="m.experts")
    load_dummy_weights(layer)
    assert layer.problem.num_absent == 0


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("num_tokens", [1, 5, 700])
def test_slots_are_found_on_a_gpu_without_a_wait_and_in_a_graph(num_tokens):
    placement = ExpertPlacement(((0, 1, 2, 3), (4, 5, 6, 0, 0)))
    context = context_of(placement, 1, device="cuda", dtype=torch.bfloat16)
    layer = Experts(MoEConfig(E, K, D, I + 4), context, prefix="m.experts")
    load_dummy_weights(layer)
    x, gates, ids = (one.cuda() for one in inputs(num_tokens))
    given = x.bfloat16(), gates, ids
    layer(*given)
    try:
        torch.cuda.set_sync_debug_mode("error")
        expected = layer(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(*given)
    graph.replay()
    assert torch.equal(captured, expected)
    assert captured.float().abs().max() > 0


def test_sizes_inside_an_expert_need_not_come_out_even(tmp_path):
    checkpoint = open_checkpoint(make_tiny("qwen3_moe", tmp_path / "m", moe_intermediate_size=30))
    with pytest.raises(CheckpointError, match="intermediate_size of an expert is 30"):
        check_shared(checkpoint, BuildContext(), 4)
    check_shared(checkpoint, BuildContext(groups=UNSHARED.spreading_experts()), 4)


def test_ranks_with_unequal_numbers_of_experts_run_the_same_steps_before_the_first():
    """Each has other kernels for other numbers of tokens, and a step takes all ranks."""
    sizes = {}
    for count in (2, 3):
        placement = ExpertPlacement.contiguous(6 if count == 2 else 7, count)
        layer = Experts(MoEConfig(placement.num_experts, K, D, I), context_of(placement, 0), prefix="m.experts")
        load_dummy_weights(layer)
        sizes[placement.is_even] = layer.sizes_told_apart(100)
    assert sizes[True]
    assert sizes[False] == []


def test_experts_of_a_gguf_file_are_read_by_their_owners(tmp_path):
    file = write_gguf(make_tiny("mixtral", tmp_path / "m"), tmp_path / "m.gguf")
    checkpoint = open_checkpoint(file)
    model = build_model(checkpoint, BuildContext(groups=Groups(OneOf(1, 2)).spreading_experts()))
    load_weights(model, checkpoint, progress=False)
    [first, *_] = [layer for layer in loadable(model) if isinstance(layer, Experts)]
    assert not [name for name in expected_weights(first) if ".experts.0." in name]


def test_experts_are_spread_over_the_ranks_that_share_their_layer_alone():
    with pytest.raises(ValueError, match="experts are spread over 4 ranks, and 2 share the layer"):
        Groups(OneOf(0, 2), expert=OneOf(0, 4))
    with pytest.raises(ValueError, match="must be the same"):
        Groups(OneOf(0, 2), expert=OneOf(1, 2))


def test_other_ranks_spread_experts_as_these_do():
    others, last = OneOf(2, 3), Stage(1, 2)
    for groups in (UNSHARED, Groups(OneOf(0, 2))):
        assert groups_of(groups, others, last).expert is None
        expert = groups_of(groups.spreading_experts(), others, last).expert
        assert expert is not None
        assert (expert.rank, expert.size) == (2, 3)
