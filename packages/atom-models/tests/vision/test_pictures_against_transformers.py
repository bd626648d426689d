"""Models that see = transformers, in float32, on tiny random checkpoints in the spelling that publishers use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import LoadedModel, load_model
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.vision.placing import place_pictures
from tiny_pictures import IMAGE, picture, their_logits

pytestmark = pytest.mark.usefixtures("quiet_transformers")

FAMILIES = ["qwen3_vl", "qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "qwen3_vl_moe", "mistral3", "ministral3", "kimi_k25"]
FAMILIES += ["gemma3-seeing"]
# Pictures between texts, one that begins or ends a prompt, neighbors, sides of one token and of odd numbers of them.
PROMPTS = (
    ([9, 8, *IMAGE, 7, 6, 5, *IMAGE, *IMAGE, 11, 12], [picture(24, 40), picture(8, 16), picture(40, 8)]),
    ([3, 4, 5, 6, 7], []),
    ([IMAGE[1], 17, 18, 19, IMAGE[1]], [picture(8, 8), picture(56, 24)]),
    ([20], []),
)


@dataclass(frozen=True)
class Tiny:
    ours: LoadedModel
    theirs: Any
    prompts: Sequence[tuple[list[int], list[torch.Tensor]]]
    expected: list[torch.Tensor]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path]) -> Tiny:
    folder = tiny_family(request.param)
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(folder, progress=False)
    prompts = PROMPTS
    if (spec := ours.model.vision_spec).resizing == "fixed":
        of_size = iter(picture(*spec.fitted(1, 1), seed=seed) for seed in range(10))
        prompts = tuple((tokens, [next(of_size) for _ in pictures]) for tokens, pictures in PROMPTS)
    return Tiny(ours, theirs, prompts, [their_logits(theirs, ours.model, *prompt) for prompt in prompts])


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * (theirs.max() - theirs.min())


def test_a_ragged_batch_of_texts_and_pictures_gives_the_logits_of_transformers(tiny: Tiny):
    texts, pictures = zip(*tiny.prompts, strict=True)
    for ours, theirs in zip(tiny.ours.logits(texts, images=pictures), tiny.expected, strict=True):
        assert_close(ours, theirs)


def test_what_is_seen_changes_what_is_said(tiny: Tiny):
    tokens, pictures = tiny.prompts[0]
    others = [*pictures[:-1], 255 - pictures[-1]]
    [ours], expected = tiny.ours.logits([tokens], images=[others]), tiny.expected[0]
    # The last picture, and the three tokens that follow it.
    first = len(expected) - 3 - tiny.ours.model.vision_spec.num_tokens(*pictures[-1].shape[:2])
    changed = (ours - expected).abs().amax(dim=1) > 1e-2 * (expected.max() - expected.min())
    assert changed[first + 1 :].all()
    assert not changed[:first].any()


def test_chunks_that_end_inside_of_pictures_and_single_tokens_give_the_same_logits(tiny: Tiny):
    model, expected = tiny.ours.model, tiny.expected[0]
    [whole] = place_pictures(model, *([one] for one in tiny.prompts[0]))
    assert whole.seen is not None
    run, rows = PagedRun(model, 16), []
    length = len(whole.token_ids)
    cuts = [0, 3, 5, 13, 19, length - 3, length - 2, length - 1, length]
    if (sees_until := whole.sees_until) is not None:
        # Tokens that see each other are in one step.
        cuts = [cut for cut in cuts if not cut or sees_until[cut - 1] < cut]
        assert cuts == [0, 3, 19, length - 3, length - 2, length - 1, length]
    for start, end in itertools.pairwise(cuts):
        part = whole.token_ids[start:end], start, range(16)
        seen = whole.seen.between(start, end)
        positions = None if whole.positions is None else whole.positions[:, start:end]
        until = None if sees_until is None else sees_until[start:end]
        rows += run.step([SequenceStep(*part, positions=positions, seen=seen, sees_until=until)])
    assert_close(tiny.ours.logits_of(torch.cat(rows)), expected)


def test_a_text_goes_on_behind_a_picture_by_one_position_a_token(tiny: Tiny):
    """Where all three positions are one, ``[T]`` are enough: decodes run as those of a text."""
    [whole] = place_pictures(tiny.ours.model, *([one] for one in tiny.prompts[0]))
    run, length = PagedRun(tiny.ours.model, 16), len(whole.token_ids)
    before = None if whole.positions is None else whole.positions[:, :-2]
    until = None if whole.sees_until is None else whole.sees_until[:-2]
    first = replace(whole, token_ids=whole.token_ids[:-2], block_ids=range(16), positions=before, sees_until=until)
    rows = run.step([first])
    delta = 0 if whole.positions is None else int(whole.positions[0, -1]) + 1 - length
    for index in (length - 2, length - 1):
        step = SequenceStep([whole.token_ids[index]], index, range(16), positions=torch.tensor([index + delta]))
        rows += run.step([step])
    assert_close(tiny.ours.logits_of(torch.cat(rows)), tiny.expected[0])
