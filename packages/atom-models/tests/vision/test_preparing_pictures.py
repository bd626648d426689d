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
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from atom_models import load_model
from atom_models.vision.batch import PictureBatch
from atom_models.vision.positions import places_of_embeddings, threefold_positions, widened
from atom_models.vision.spec import VisionSpec
from tiny_pictures import SPEC, picture, pixtral_processor, processor


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


def as_array(one: torch.Tensor, spec: VisionSpec) -> torch.Tensor:
    height, width = spec.fitted(*one.shape[:2])
    return torch.from_numpy(np.array(Image.fromarray(one.numpy()).resize((width, height), Image.Resampling.BICUBIC)))


WITH_ROWS = replace(
    SPEC,
    start_token_id=None,
    end_token_id=13,
    has_threefold_positions=False,
    resizing="shrunk",
    max_side=100,
    max_pixels=104**2,
    row_token_id=12,
)
PADDED = replace(SPEC, has_threefold_positions=False, resizing="padded", max_side=128)


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), longest=st.sampled_from([80, 100, 1024, 1540]))
def test_pictures_with_rows_are_brought_to_the_sizes_of_transformers(height: int, width: int, longest: int):
    spec = replace(WITH_ROWS, max_side=longest, max_pixels=(-(-longest // SPEC.unit) * SPEC.unit) ** 2)
    rows, columns = spec.fitted(height, width)
    # Theirs has no picture where a side comes to nothing.
    if longest * min(height, width) >= max(height, width):
        empty = np.broadcast_to(np.zeros(1, np.uint8), (3, height, width))
        assert (rows, columns) == get_resize_output_image_size(empty, longest, spec.unit, "channels_first")
    assert spec.least_tokens <= spec.num_tokens(rows, columns) <= spec.most_tokens
    assert rows * columns <= spec.most_pixels


def their_sides(height: int, width: int, spec: VisionSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the processor of Kimi-K2.5 computes: the size, and the size with what is filled up."""
    size, most = spec.patch_size, spec.max_pixels // spec.patch_size**2
    counts = [max(1.0, side // size) for side in (height, width)]
    bounds = [spec.max_side // size * size / side for side in (height, width)]
    scale = min(1.0, (most / (counts[0] * counts[1])) ** 0.5, *bounds)
    sides = [min(max(1, int(side * scale)), spec.max_side) for side in (height, width)]
    filled = [side + (spec.unit - side % spec.unit) % spec.unit for side in sides]
    return (sides[0], sides[1]), (filled[0], filled[1])


@given(
    height=st.integers(1, 9000),
    width=st.integers(1, 9000),
    sizes=st.sampled_from([(4, 400, 32), (4, 50, 32), (14, 16384, 512), (14, 4096, 64), (14, 16, 512)]),
)
def test_pictures_that_are_filled_up_have_the_sizes_of_the_published_processor(height: int, width: int, sizes):
    size, patches, on_side = sizes
    spec = replace(PADDED, patch_size=size, max_pixels=patches * size**2, max_side=on_side * size, min_pixels=1)
    assert (spec.resized(height, width), spec.fitted(height, width)) == their_sides(height, width, spec)
    assert spec.num_tokens(*spec.fitted(height, width)) <= spec.most_tokens


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), most=st.integers(2, 200))
def test_pictures_are_made_small_enough_for_the_tokens_that_a_host_has_room_for(height: int, width: int, most: int):
    for spec in (WITH_ROWS, PADDED):
        bounded = spec.within(most)
        assert bounded.most_tokens == min(most, spec.most_tokens)
        assert bounded.num_tokens(*bounded.fitted(height, width)) <= most
        if spec.num_tokens(*spec.fitted(height, width)) <= most:
            assert bounded.resized(height, width) == spec.resized(height, width)


def test_a_picture_whose_rows_are_told_apart_has_tokens_between_them_and_one_at_its_end():
    tokens, firsts = widened([5, SPEC.image_token_id, 6], [(16, 24)], WITH_ROWS)
    image = SPEC.image_token_id
    assert (tokens, firsts) == ([5, image, image, image, 12, image, image, image, 13, 6], [1])
    assert places_of_embeddings(16, 24, WITH_ROWS).tolist() == [0, 1, 2, 4, 5, 6]
    assert places_of_embeddings(16, 24, SPEC).tolist() == list(range(6))


def test_pictures_of_mistral_3_are_those_of_its_processor(tiny_family: Callable[[str], Path]):
    model: Any = load_model(tiny_family("mistral3"), progress=False).model
    given = [picture(61, 30), picture(7, 200), picture(200, 150)]
    fitted = [as_array(one, model.vision_spec) for one in given]
    theirs = pixtral_processor(model.vision_spec)([one.numpy() for one in given])
    assert theirs["image_sizes"].tolist() == [list(one.shape[:2]) for one in fitted]
    for one, pixels in zip(fitted, theirs["pixel_values"], strict=True):
        height, width, _ = one.shape
        [ours] = [model.vision.patch_conv.prepared([one])[:, :, 0]]
        expected = pixels[:, :height, :width].unfold(1, 8, 8).unfold(2, 8, 8).permute(1, 2, 0, 3, 4).flatten(0, 1)
        # Four patches of 4 x 4 of each square, row by row.
        squares = ours.view(-1, 2, 2, 3, 4, 4).permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, 8, 8)
        assert (squares - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_patches_are_those_of_transformers(family: str, tiny_family: Callable[[str], Path]):
    model: Any = load_model(tiny_family(family), progress=False).model
    spec, pictures = model.vision_spec, [picture(61, 30), picture(7, 100), picture(200, 150)]
    ours = model.vision.patch_embed.prepared([as_array(one, spec) for one in pictures]).flatten(1)
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
