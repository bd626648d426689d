"""Files of pictures, decoded by ours or by it, are what transformers' processor of the checkpoint makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from atom_models import open_checkpoint
from atom_models.vision.patches import cut
from atom_models.vision.reading import vision_spec
from atom_models.vision.spec import VisionSpec
from atom_server.pictures.checkpoint_process import decode_by
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.decoding import decode
from atom_server.pictures.limits import PictureLimits
from atom_server.pictures.messages import Question
from pictures import file_of, turned, url_of
from tiny_dual import FAMILIES, make_dual
from tiny_fallback_seeing import IN_ROWS, SEEING, make_fallback_seeing

PROCESSORS = {
    "qwen3_vl": Qwen2VLImageProcessorPil,
    "qwen2_5_vl": Qwen2VLImageProcessorPil,
    "qwen3_5": Qwen2VLImageProcessorPil,
    "gemma3-seeing": Gemma3ImageProcessorPil,
    "mistral3": PixtralImageProcessorPil,
}
# Large, small, flat and odd ones, with colors that a processor drops, too.
NOISE = Image.effect_noise((201, 150), 90)
PICTURES = [
    Image.merge("RGB", (NOISE, NOISE.rotate(90), NOISE.rotate(180))),
    Image.linear_gradient("L").resize((31, 17)).convert("RGB"),
    Image.radial_gradient("L").resize((97, 5)).quantize(16),
    NOISE,
]


def ours(spec: VisionSpec) -> list[torch.Tensor]:
    """The pictures as a client's files, in the numbers that a tower takes: ``[3, height, width]`` each."""
    decoder = PictureDecoder(spec, PictureLimits(count=9, num_bytes=1 << 20, num_pixels=1_000_000))
    try:
        images = asyncio.run(decoder.decode([url_of(file_of(one)) for one in PICTURES], num_tokens=10_000))
    finally:
        decoder.close()
    shapes = [(image.height, image.width, 3) for image in images]
    pixels = [torch.tensor(list(image.pixels)).view(shape) for image, shape in zip(images, shapes, strict=True)]
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    return [((one / 255 - mean) / std).permute(2, 0, 1) for one in pixels]


@pytest.mark.parametrize("family", PROCESSORS)
def test_a_file_becomes_what_the_processor_of_the_checkpoint_makes_of_it(
    family: str, tiny_family: Callable[[str], Path]
):
    folder = tiny_family(family)
    spec: Any = vision_spec(open_checkpoint(folder))
    theirs = PROCESSORS[family].from_pretrained(folder)
    if spec.resizing == "shrunk":
        # As its caller does: sides are multiples of what becomes one token.
        theirs.patch_size = {"height": spec.unit, "width": spec.unit}
    for picture, own in zip(PICTURES, ours(spec), strict=True):
        found = theirs(picture.convert("RGB"), return_tensors="pt")["pixel_values"]
        if spec.resizing == "rounded":
            # Rows of patches, square by square, in which a picture stands for two frames.
            own, found = cut(own.permute(1, 2, 0), spec), found.view(-1, 3, 2, spec.patch_size**2)[:, :, 0]
        else:
            found = found[0]
        assert own.shape == found.shape
        assert (own - found).abs().max() <= 1e-6


@pytest.fixture
def folder_of(tiny_family: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """``folder_of(name)`` gives the tiny checkpoint of a family that sees."""

    def written(name: str) -> Path:
        if name in FAMILIES:
            make_dual(name, tmp_path)
        elif name in SEEING | IN_ROWS:
            make_fallback_seeing(name, tmp_path)
        else:
            return tiny_family(name)
        return tmp_path

    return written


@pytest.mark.parametrize("family", [*PROCESSORS, *FAMILIES, *SEEING, *IN_ROWS])
def test_the_checkpoints_own_processor_gives_the_pixels_of_ours(family: str, folder_of: Callable[[str], Path]):
    folder = folder_of(family)
    spec: Any = vision_spec(open_checkpoint(folder))
    own = decode_by(folder)
    clear = NOISE.copy()
    clear.putalpha(NOISE.rotate(90))
    for file in (*map(file_of, PICTURES), file_of(clear), turned(6, PICTURES[0])):
        question = Question(file, False, 1 << 20, 1_000_000, spec)
        assert own(question) == decode(question)


@pytest.mark.parametrize("bound", [9, 40])
def test_the_checkpoints_own_processor_makes_pictures_as_small_as_a_step_has_room_for(
    bound: int, tiny_family: Callable[[str], Path]
):
    folder = tiny_family("qwen3_vl")
    spec: Any = vision_spec(open_checkpoint(folder))
    question = Question(file_of(NOISE), False, 1 << 20, 1_000_000, spec.within(bound))
    answer = decode_by(folder)(question)
    assert answer == decode(question)
    assert answer.image is not None
    assert spec.num_tokens(answer.image.height, answer.image.width) <= bound


def test_a_processor_that_cannot_be_told_of_that_room_is_refused(tiny_family: Callable[[str], Path]):
    folder = tiny_family("mistral3")
    spec: Any = vision_spec(open_checkpoint(folder))
    question = Question(file_of(NOISE), False, 1 << 20, 1_000_000, spec.within(9))
    with pytest.raises(PictureError, match="bounds pictures to 9 tokens, which a Pixtral.* cannot be told"):
        decode_by(folder)(question)
