"""The lightning index in Triton chooses what its reference does, position by position."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.index import best_positions
from atom_kernels.attention.index.cases import make_problem, make_step
from atom_kernels.attention.index.triton_choose import choose_kernel
from atom_kernels.mixers import UnsupportedMixerError, select_mixer
from atom_kernels.platform import detect_platform
from atom_kernels.triton.launch import launch
from padded_steps import last_is_padding

DEVICE = detect_platform().device
# Decodes around the borders of blocks, tiles and choices; short queries; a prompt; chunks behind a prefix.
MIXED = ((1, 1), (1, 24), (1, 130), (2, 70), (5, 5), (6, 27))


def assert_agrees(problem, requests, **options):
    step = make_step(problem, requests, **options).to(DEVICE)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float32", {}), ("bfloat16", {"interleaved": True, "scattered": True}), ("bfloat16", {"prologue": False})],
    ids=str,
)
def test_a_mixed_batch_agrees(dtype, options):
    assert_agrees(make_problem(5, 32, 16, 24, dtype), MIXED, **options)


@pytest.mark.parametrize("shape", [(1, 16, 4, 7), (33, 24, 24, 20), (4, 128, 64, 300)], ids=str)
def test_any_number_of_heads_of_any_size(shape):
    assert_agrees(make_problem(*shape, block_size=1), [(1, 33), (1, 100), (2, 20)])


def test_rows_are_scored_some_at_a_time(monkeypatch):
    monkeypatch.setattr("atom_kernels.attention.index.triton_backend._SCORES", 300)
    assert_agrees(make_problem(5, 32, 16, 40), [(1, 90), (7, 65)])


def test_programs_of_many_tiles_agree(monkeypatch):
    monkeypatch.setattr("atom_kernels.attention.index.triton_backend._PROGRAMS", 2)
    assert_agrees(make_problem(5, 32, 16, 40), [(1, 290), (2, 65)])


def test_padding_writes_nothing_and_chooses_nothing():
    problem = make_problem(5, 32, 16, 40)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step(problem, [(1, 5), (1, 300), (1, 7)], prologue=False).to(DEVICE)
    whole = step.run(plan)[0]
    chosen, cache = last_is_padding(step).run(plan)
    assert torch.equal(chosen[:2], whole[:2])
    assert (chosen[2] == -1).all()
    block = step.geometry.block_table[2, 0]
    assert torch.equal(cache[block], step.caches[0][block])


@pytest.mark.parametrize("top_k", [1, 130, 299])
def test_scores_of_every_size_and_sign_are_ordered_as_numbers(top_k):
    generator = torch.Generator().manual_seed(top_k)
    scores = torch.randn(3, 300, generator=generator) * 10.0 ** torch.randint(-30, 30, (3, 300), generator=generator)
    scores[0, ::3], scores[0, 1::3] = 0.0, -0.0
    scores[1, :7], scores[1, 100:150] = float("inf"), -2.5
    scores[2] = scores[2].abs().neg()
    expected = best_positions(scores, top_k)
    chosen = torch.empty((3, top_k), dtype=torch.int32, device=DEVICE)
    visible = torch.full((3,), 300, dtype=torch.int32, device=DEVICE)
    launch(
        choose_kernel, (1, 3), scores.to(DEVICE), visible, visible, chosen, scores.to(DEVICE), visible, 0, 300, 1,
        LEVEL=0, TOP_K=top_k, SEGMENT=512, DEPENDENT=False, num_warps=4,
    )  # fmt: skip
    assert torch.equal(chosen.cpu(), expected)


def test_long_rows_are_chosen_from_in_rounds():
    problem = make_problem(2, 16, 4, 60)
    segment = select_mixer(problem, only_backend="triton").runner._segment
    rounds = 3 if segment == 128 else 1
    # Rows whose first, second and last round finishes them; each round leaves half, or less.
    assert_agrees(problem, [(1, 100), (1, 190), (1, 128 * 2**rounds), (1, 600)], scattered=True)


def test_what_it_is_not_written_for_is_refused():
    with pytest.raises(UnsupportedMixerError, match="written for up to 128 heads of up to 256, not 200 of 64"):
        select_mixer(make_problem(200, 64, 32, 8), only_backend="triton")
    with pytest.raises(UnsupportedMixerError, match="written for a choice of up to 4096 positions, not 5000"):
        select_mixer(make_problem(4, 64, 32, 5000), only_backend="triton")


def test_inputs_that_it_was_not_planned_for_are_refused():
    problem = make_problem(5, 32, 16, 40)
    step = make_step(problem, [(1, 5)]).to(DEVICE)
    wrong = replace(step, inputs=tuple(x.bfloat16() for x in step.inputs))
    with pytest.raises(TypeError, match=r"planned for torch.float32, got torch.bfloat16"):
        wrong.run(select_mixer(problem, only_backend="triton"))
