"""Files of pictures, decoded here, are what transformers' processor of the checkpoint makes of them."""

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
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.limits import PictureLimits
from pictures import file_of, url_of

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
