"""Prompts with pictures: image tokens are widened, and what the model does not take is refused in words."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from atom_core.config import ConfigError, EngineArgs
from atom_core.config.images import room_for_images
from atom_core.engine.inputs import placed_images
from atom_core.engine.inputs.fitted_images import as_image
from atom_core.engine.inputs.given_prompts import GivenPrompt
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.validation import RequestLimits
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, PlacedImage, SamplingParams
from atom_models.vision.spec import VisionSpec
from seeing_models import END, IMAGE, START, UNIT, around, picture

SPEC = VisionSpec(IMAGE, START, END, 4, 2, 64, 4096, (0.5,) * 3, (0.5,) * 3)
LIMITS = RequestLimits(max_model_len=100, vocab_size=512, max_num_seqs=8, images=SPEC)
SEES, READS = (
    InputProcessor(limits, eos_token_ids=[2], seed=0) for limits in (LIMITS, dataclasses.replace(LIMITS, images=None))
)
FIRST, SECOND = picture(1), picture(2, 3, 3)


def refusal(tokens, images, processor=SEES):
    with pytest.raises(InvalidRequestError) as caught:
        processor.check_prompts([tokens], images=[images])
    return caught.value.message


def test_a_prompt_gets_a_token_for_each_embedding_of_its_pictures():
    tokens, images = around([5], FIRST, [6], SECOND, [7])
    checked = SEES.check_prompts([tokens, [8, 9]], images=[images, []])
    widened = [5, START, *[IMAGE] * 24, END, 6, START, *[IMAGE] * 9, END, 7]
    places = (PlacedImage(FIRST, 2, 24), PlacedImage(SECOND, 29, 9))
    assert (checked.token_ids, checked.images) == ([widened, [8, 9]], [places, ()])
    [prompt, plain] = SEES.process(checked, SamplingParams(n=2, max_tokens=5)).prompts
    assert (prompt.token_ids, prompt.images, plain.images) == (widened, places, ())
    submission = SEES.process(checked, SamplingParams(n=2, max_tokens=5))
    assert [sample.images for sample in submission.samples()] == [places] * 2 + [()] * 2


def test_text_alone_is_what_it_was():
    for processor in (SEES, READS):
        checked = processor.check_prompts([[5, 6]])
        assert (checked.token_ids, checked.images) == ([[5, 6]], ())
    # For a model that reads, the token is one like others.
    assert READS.check_prompts([[5, IMAGE, 6]]).token_ids == [[5, IMAGE, 6]]


@pytest.mark.parametrize(
    ("tokens", "images", "words"),
    [
        ([5, IMAGE, 6], [], r"has 1 image tokens \(503\), and there are 0 pictures"),
        ([5, IMAGE, IMAGE, 6], [FIRST], "has 2 image tokens .503., and there are 1 pictures"),
        ([5, 6], [FIRST], "has 0 image tokens"),
        ([5, IMAGE], [FIRST], "ends with a picture; at least one token must follow"),
        ([5, IMAGE, 6], ["a file"], r"images\[0\] is a str; it must be an Image"),
        ([5, IMAGE, 6], [Image.of(8, 12, bytes(288))], "has 12 x 8 pixels; both sides must be multiples of 8: bring"),
        ([5, IMAGE, 6], [picture(1, 9, 8)], r"has 64 x 72 pixels; it must be 64 to 4096 of them: bring it to the size"),
        ([5, IMAGE, 6], [msgspec.structs.replace(FIRST, pixels=b"12")], "has 48 x 32 pixels and 2 bytes; there are 3"),
        ([5, *[IMAGE] * 5, 6], [FIRST] * 5, "prompt has 122 tokens; this model's context is 100"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_take_is_refused(tokens, images, words):
    with pytest.raises(InvalidRequestError, match=words):
        SEES.check_prompts([tokens], images=[images])


def test_a_model_that_reads_text_alone_refuses_pictures():
    assert refusal([5, IMAGE, 6], [FIRST], READS) == (
        "the prompt has 1 pictures, and this model reads text alone: leave them out, or ask a model that sees"
    )


def test_a_prompt_has_256_pictures_at_most(monkeypatch):
    small = picture(1, 1, 1)
    for processor, length in ((SEES, 1000),):
        limits = dataclasses.replace(processor.limits, max_model_len=length)
        many = InputProcessor(limits, eos_token_ids=[2])
        assert len(many.check_prompts([[IMAGE] * 256 + [5]], images=[[small] * 256]).images[0]) == 256
        assert refusal([IMAGE] * 257 + [5], [small] * 257, many) == "the prompt has 257 pictures; send at most 256"
    assert placed_images.MAX_IMAGES == 256


def test_arrays_and_pictures_of_pillow_become_pictures_of_a_size_that_the_model_takes():
    pillow = pytest.importorskip("PIL.Image")
    array = np.random.default_rng(0).integers(0, 256, (50, 30, 3), dtype=np.uint8)
    fitted = as_image(array, SPEC)
    assert (fitted.height, fitted.width) == SPEC.fitted(50, 30) == (48, 32)
    resized = pillow.fromarray(array).resize((32, 48), pillow.Resampling.BICUBIC)
    assert fitted == Image.of(48, 32, resized.tobytes()) == as_image(pillow.fromarray(array), SPEC)
    assert as_image(FIRST, SPEC) is FIRST
    clear = pillow.new("RGBA", (UNIT, UNIT), (0, 0, 0, 0))
    assert set(as_image(clear, SPEC).pixels) == {255}


def test_a_picture_that_is_not_stretched_is_filled_up_with_black():
    pillow = pytest.importorskip("PIL.Image")
    spec = dataclasses.replace(SPEC, resizing="padded", max_side=64)
    array = np.random.default_rng(0).integers(1, 256, (50, 130, 3), dtype=np.uint8)
    filled = as_image(array, spec)
    assert (spec.resized(50, 130), filled.height, filled.width) == ((24, 64), 24, 64)
    array = array[:45, :30]
    filled = as_image(array, spec)
    shown = np.frombuffer(filled.pixels, np.uint8).reshape(filled.height, filled.width, 3)
    assert shown.shape == (48, 32, 3)
    assert (shown[:45, :30] == array).all()
    assert not shown[45:].any()
    assert not shown[:, 30:].any()
    assert as_image(pillow.fromarray(array), spec) == filled


def test_tokens_between_the_rows_of_a_picture_come_with_it_and_are_counted():
    spec = dataclasses.replace(SPEC, resizing="shrunk", max_side=64, start_token_id=None, row_token_id=12)
    sees = InputProcessor(dataclasses.replace(LIMITS, images=spec), eos_token_ids=[2], seed=0)
    checked = sees.check_prompts([[5, IMAGE, 6]], images=[[SECOND]])
    rows = [IMAGE, IMAGE, IMAGE, 12, IMAGE, IMAGE, IMAGE, 12, IMAGE, IMAGE, IMAGE, END]
    assert (checked.token_ids, checked.images) == ([[5, *rows, 6]], [(PlacedImage(SECOND, 1, 12),)])
    assert refusal([5, IMAGE], [SECOND], sees) == "the prompt ends with a picture; at least one token must follow it"
    tall = Image.of(64 * 8, 8, bytes(3 * 64 * 64))
    assert "has 8 x 512 pixels, 128 tokens; it can be 72 of them" in refusal([5, IMAGE, 6], [tall], sees)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((8, 8), dtype=np.uint8), r"an array uint8 \[8, 8\]; it must be uint8 \[height, width, 3\]"),
        (np.zeros((8, 8, 3)), "an array float64"),
        ("a file", "is a str; it must be an Image, an array"),
        (np.zeros((1, 300, 3), dtype=np.uint8), "more than 200 times the other"),
    ],
)
def test_what_is_no_picture_is_refused(given, words):
    pytest.importorskip("PIL")
    with pytest.raises(InvalidRequestError, match=words):
        as_image(given, SPEC)


def test_prompts_of_programs_are_texts_token_ids_or_mappings():
    assert GivenPrompt.of("text", None) == GivenPrompt("text")
    assert GivenPrompt.of({"prompt": "text"}, None) == GivenPrompt("text")
    assert GivenPrompt.of({"prompt_token_ids": [1], "images": [FIRST]}, SPEC) == GivenPrompt([1], [FIRST])
    for wrong in ({}, {"prompt": "a", "prompt_token_ids": [1]}, {"prompt": "a", "image": FIRST}):
        with pytest.raises(
            InvalidRequestError, match="must have 'prompt' or 'prompt_token_ids', and may have 'images'"
        ):
            GivenPrompt.of(wrong, SPEC)
    with pytest.raises(InvalidRequestError, match="has 1 pictures, and this model reads text alone"):
        GivenPrompt.of({"prompt": "a", "images": [FIRST]}, None)


class Checkpoint:
    architecture = "TinyVL"


def test_a_step_has_room_for_the_largest_picture_which_is_made_as_small_as_that(monkeypatch):
    monkeypatch.setattr(room_for_images, "vision_spec", lambda checkpoint: SPEC)

    def resolved(budget=512, max_model_len=100, **given):
        args, choices = EngineArgs(**given), []
        images = room_for_images.resolve_images(args, Checkpoint(), max_model_len, choices)
        return images.spec.max_pixels, room_for_images.image_token_budget(args, images, budget), len(choices)

    assert resolved() == (4096, 512, 0)
    assert resolved(budget=10) == (4096, 64, 0)
    assert resolved(budget=10, max_model_len=40) == (4096, 40, 0)
    assert resolved(max_num_image_tokens=100) == (4096, 100, 0)
    assert resolved(max_num_image_tokens=20) == (20 * 64, 20, 1)
    large = dataclasses.replace(SPEC, min_pixels=640)
    monkeypatch.setattr(room_for_images, "vision_spec", lambda checkpoint: large)
    with pytest.raises(ConfigError, match="max_num_image_tokens is 9, and the smallest picture has 10"):
        resolved(max_num_image_tokens=9)
    monkeypatch.setattr(room_for_images, "vision_spec", lambda checkpoint: None)
    with pytest.raises(ConfigError, match="max_num_image_tokens is 9, and TinyVL reads text alone here"):
        resolved(max_num_image_tokens=9)
