"""Sizes, patches and positions of pictures, beside those of transformers' processors and models."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from atom_models import load_model
from atom_models.vision.batch import PictureBatch
from atom_models.vision.positions import threefold_positions, widened
from tiny_pictures import SPEC, picture, processor


@given(
    height=st.integers(1, 5000),
    width=st.integers(1, 5000),
    patch_size=st.sampled_from([4, 14, 16]),
    limits=st.sampled_from([(64, 6400), (3136, 12845056), (65536, 16777216), (256, 1024)]),
)
def test_pictures_are_brought_to_the_sizes_of_transformers(height, width, patch_size, limits):
    spec = replace(SPEC, patch_size=patch_size, min_pixels=limits[0], max_pixels=limits[1])
    try:
        expected = smart_resize(height, width, spec.unit, *limits)
    except ValueError:
        with pytest.raises(ValueError, match="one side is more than 200 times the other"):
            spec.fitted(height, width)
        return
    assert spec.fitted(height, width) == expected


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_patches_are_those_of_transformers(family: str, tiny_family: Callable[[str], Path]):
    model: Any = load_model(tiny_family(family), progress=False).model
    spec, pictures = model.vision_spec, [picture(61, 30), picture(7, 100), picture(200, 150)]
    resized = []
    for one in pictures:
        height, width = spec.fitted(*one.shape[:2])
        made = Image.fromarray(one.numpy()).resize((width, height), Image.Resampling.BICUBIC)
        resized.append(torch.from_numpy(np.array(made)))
    ours = model.vision.patch_embed.prepared(resized).flatten(1)
    theirs = processor(spec)([one.numpy() for one in pictures])
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-6


def their_positions(tokens: list[int], sizes: list[tuple[int, int]]) -> tuple[np.ndarray, int]:
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=SPEC.merge_size))
    model = SimpleNamespace(config=config)
    model.get_vision_position_ids = lambda *args, **named: Qwen3VLModel.get_vision_position_ids(model, *args, **named)  # type: ignore[arg-type]
    grids = torch.tensor([[1, height // SPEC.patch_size, width // SPEC.patch_size] for height, width in sizes])
    ids = torch.tensor([tokens])
    are_seen = (ids == SPEC.image_token_id).int()
    found, delta = Qwen3VLModel.get_rope_index(model, ids, are_seen, grids if sizes else None)  # type: ignore[arg-type]
    return found[:, 0].numpy(), int(delta)


def test_positions_are_those_of_transformers():
    draw = random.Random(0)
    for _ in range(20):
        sizes = [(draw.randint(1, 9) * SPEC.unit, draw.randint(1, 9) * SPEC.unit) for _ in range(draw.randint(0, 4))]
        prompt = [draw.randint(3, 300) for _ in range(draw.randint(0, 4))]
        for _ in sizes:
            prompt += [SPEC.image_token_id, *(draw.randint(3, 300) for _ in range(draw.randint(1, 5)))]
        if not prompt:
            continue
        tokens, firsts = widened(prompt, sizes, SPEC)
        placed = [(first, *size) for first, size in zip(firsts, sizes, strict=True)]
        ours, delta = threefold_positions(tokens, placed, SPEC)
        theirs, their_delta = their_positions(tokens, sizes)
        assert ours.dtype == np.int64
        assert (ours == theirs).all()
        assert delta == their_delta


def test_neighbors_have_positions_of_their_own():
    """Two pictures with nothing between them are told apart by their places, not by their tokens."""
    tokens, firsts = widened([SPEC.image_token_id] * 2, [(16, 8), (8, 8)], SPEC)
    positions, delta = threefold_positions(tokens, [(firsts[0], 16, 8), (firsts[1], 8, 8)], SPEC)
    assert positions.tolist() == [[0, 0, 2], [0, 1, 2], [0, 0, 2]]
    assert delta == 0


def test_a_prompt_with_another_number_of_image_tokens_than_pictures_is_refused():
    with pytest.raises(ValueError, match="the prompt has 1 image tokens .* and there are 2 pictures"):
        widened([3, SPEC.image_token_id], [(8, 8), (8, 8)], SPEC)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(8, 12, 3, dtype=torch.uint8), torch.zeros(8, 8, 4, dtype=torch.uint8), torch.zeros(8, 8, 3)]
)
def test_a_picture_that_does_not_fit_is_refused(wrong: torch.Tensor):
    with pytest.raises(ValueError, match=r"it must be uint8 \[height, width, 3\], both sides multiples of 8"):
        PictureBatch.of([wrong], SPEC, torch.device("cpu"))
