"""Pictures whose tokens see each other: how steps are cut, what a step is told, and how prompts are written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atom_core.engine.inputs.fitted_images import as_image
from atom_core.engine.inputs.placed_images import place_images, with_marks
from atom_core.errors import InvalidRequestError
from atom_core.messages import (
    EngineRequest,
    Image,
    NewRequest,
    PlacedImage,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
)
from atom_core.scheduler import SchedulerConfig
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_core.worker.vision.pictures import Pictures
from atom_kernels.protocols import BatchGeometry
from atom_models.vision.positions import last_seen
from atom_models.vision.spec import VisionSpec
from scheduled_requests import make_engine
from seeing_models import END, IMAGE, START, picture

HALVES = (0.5,) * 3
SPEC = VisionSpec(
    IMAGE, START, END, 4, 2, 256, 256, HALVES, HALVES, has_threefold_positions=False, resizing="fixed", max_side=16,
    resample="bilinear", sees_ahead=True, written_around="\n\n",
)  # fmt: skip
A, B = picture(1, 2, 2), picture(2, 2, 2)  # of 4 tokens each


def request(name: str, *texts: int, images: tuple[Image, ...] = (A, B)) -> EngineRequest:
    """Texts of so many tokens around pictures."""
    tokens, placed = [5] * texts[0], []
    for image, text in zip(images, texts[1:], strict=True):
        placed.append(PlacedImage(image, len(tokens), 4))
        tokens += [IMAGE] * 4 + [6] * text
    return EngineRequest(name, tokens, SamplingParams(max_tokens=1), images=tuple(placed))


def chunks(*requests: EngineRequest, **settings: int) -> list[list[tuple[str, int]]]:
    engine = make_engine(max_num_image_tokens=64, **settings)
    engine.add(*requests)
    engine.run()
    return [[(one.request_id, one.num_new_tokens) for one in step.scheduled] for step in engine.steps]


def test_a_step_ends_before_a_picture_that_it_cannot_take_whole():
    prompt = request("a", 3, 2, 1)
    assert chunks(prompt, max_num_batched_tokens=5) == [[("a", 5)], [("a", 5)], [("a", 4)]]
    in_steps = chunks(prompt, max_num_batched_tokens=5, least_image_step=4)
    assert in_steps == [[("a", 3)], [("a", 5)], [("a", 5)], [("a", 1)]]
    assert chunks(prompt, max_num_batched_tokens=7, least_image_step=4) == [[("a", 7)], [("a", 7)]]


def test_the_share_of_a_prompt_among_others_has_room_for_a_picture():
    prompts = request("a", 0, 2, images=(A,)), request("b", 0, 2, images=(B,))
    found = chunks(*prompts, max_num_batched_tokens=6, least_image_step=4)
    assert found == [[("a", 6)], [("b", 6)]]


def test_a_step_without_room_for_a_picture_is_refused():
    with pytest.raises(ValueError, match="max_num_batched_tokens is 8; .* takes pictures whole, and needs room for 16"):
        SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, max_model_len=64, least_image_step=16)


def test_tokens_of_a_picture_see_its_last_one_and_no_step_ends_before_it():
    spans = [(2, 5), (5, 6)]
    assert last_seen(0, 8, spans).tolist() == [-1, -1, 4, 4, 4, 5, -1, -1]
    assert last_seen(4, 3, spans).tolist() == [4, 5, -1]  # behind a prefix that ends inside
    assert last_seen(6, 2, spans).tolist() == [-1, -1]
    with pytest.raises(ValueError, match="ends before token 4, inside a picture of the tokens 2 to 4"):
        last_seen(0, 4, spans)


def test_a_step_is_told_what_its_tokens_see_and_what_sees_ahead_is_no_decode():
    pictures = Pictures(None, SPEC, cache_bytes=0, device=torch.device("cpu"))
    seeing = request("a", 3, 2, images=(A,))
    new = NewRequest("a", seeing.token_ids, 9, seeing.sampling_params, (), 0, images=seeing.images)
    scheduled = [ScheduledRequest("t", 20, 1, [], 1), ScheduledRequest("a", 5, 4, [], 1)]
    step = SchedulerOutput(0, scheduled, [new], [])
    pictures.update(step)
    sight = pictures.look(step)
    assert sight is not None
    assert not sight.is_of_text  # and this stage has no tower
    assert sight.sees_until is not None
    assert sight.sees_until.tolist() == [-1, 6, 6, -1, -1]
    rows = StepRows.of(step, {"t": 0, "a": 1})
    nothing = torch.zeros(1, dtype=torch.int64)
    geometry = BatchGeometry(nothing, nothing, nothing, nothing, 2, 5, 2, 4, 21, max_decode_len=4)
    batch = ModelInput(rows, nothing, nothing, (geometry,), None, nothing, nothing)
    assert not batch.has_pictures
    shown = sight.shown_to(batch)
    assert shown.has_pictures
    assert shown.geometry.sees_until is not None
    assert shown.geometry.sees_until.dtype is torch.int32
    assert shown.geometry.num_decodes == 1
    text = replace(sight, sees_until=np.array([-1, -1, -1, -1, 8], dtype=np.int32)).shown_to(batch)
    assert text.geometry.num_decodes == 1


class Tokens:
    """Texts of the marks."""

    def id_to_token(self, token_id: int) -> str | None:
        return {START: "<start>", IMAGE: "<soft>", END: "<end>"}.get(token_id)


def test_what_a_template_leaves_out_is_written_around_each_picture():
    written = "\n\n<start><soft><end>\n\n"
    assert with_marks("a\n<start>b<start>", SPEC, Tokens()) == f"a\n{written}b{written}"
    assert with_marks(f"a{written}b", SPEC, Tokens()) == f"a{written}b"
    assert with_marks("a<start>b", replace(SPEC, written_around=""), None) == "a<start>b"
    with pytest.raises(InvalidRequestError, match="has no tokens that stand for pictures"):
        with_marks("a<start>b", SPEC, None)


def test_pictures_are_stretched_to_one_size_by_the_filter_of_the_processor_and_others_are_refused():
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 40, 3), dtype=np.uint8)
    expected = pillow.fromarray(pixels).resize((16, 16), pillow.Resampling.BILINEAR).tobytes()
    assert as_image(pixels, SPEC).pixels == expected
    assert SPEC.most_tokens == SPEC.least_tokens == 4
    with pytest.raises(InvalidRequestError, match="32 x 8 pixels; it must be 16 x 16"):
        place_images([IMAGE, 7], [picture(0, 1, 4)], SPEC)
