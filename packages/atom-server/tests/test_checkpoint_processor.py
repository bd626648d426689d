"""Pictures pass the checkpoint's own processor where that is asked for: whose pixels, and what is refused, and when."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("transformers")

from atom_core.config import ConfigError
from atom_core.models import VisionSpec
from atom_server import ServerOptions
from atom_server.errors import APIError
from atom_server.pictures.checkpoint_process import decode_by
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.limits import PictureLimits
from atom_server.pictures.messages import Question
from pictures import animated, file_of, head_of_png, two_colors, url_of

HALF = (0.5, 0.5, 0.5)
SPEC = VisionSpec(5, 6, 7, 16, 2, min_pixels=32 * 32, max_pixels=64 * 64, mean=HALF, std=HALF)
QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64},
    "image_mean": HALF,
    "image_std": HALF,
}
GEMMA = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 64, "width": 64}}
NOISE = Image.effect_noise((200, 150), 90).convert("RGB")
LIMITS = PictureLimits(count=4, num_bytes=1 << 20, num_pixels=1_000_000)
WriteFolder = Callable[..., Path]


@pytest.fixture(scope="module")
def folder_with(tmp_path_factory: pytest.TempPathFactory) -> WriteFolder:
    """``folder_with(**fields)`` has nothing but the file of a processor."""

    def write(**fields: Any) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        (folder / "preprocessor_config.json").write_text(json.dumps(fields))
        return folder

    return write


@pytest.fixture(scope="module")
def decoder(folder_with: WriteFolder) -> Iterator[PictureDecoder]:
    """By a processor that takes the nearest pixel, as ours never does."""
    decoder = PictureDecoder(SPEC, LIMITS, processor=str(folder_with(**QWEN, resample=0)))
    yield decoder
    decoder.close()


def decoded(decoder: PictureDecoder, *urls: str):
    return asyncio.run(decoder.decode(urls, num_tokens=1000))


def test_pixels_are_those_of_the_processor_by_a_process_that_had_started_with_the_server(decoder):
    assert decoder.processes.num_started == len(decoder.processes.idle) == 1
    [image] = decoded(decoder, url_of(file_of(NOISE)))
    assert (image.height, image.width) == SPEC.fitted(150, 200)
    assert image.pixels == NOISE.resize((image.width, image.height), Image.Resampling.NEAREST).tobytes()
    assert decoder.processes.num_started == 1


HOSTILE = {
    "a bomb by its head": (head_of_png(60_000, 60_000), "60000 x 60000 pixels; at most 1000000 are decoded"),
    "a drawing": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "no picture of PNG, JPEG, WEBP or GIF"),
    "a film": (animated("GIF"), "animated"),
    "a thread": (file_of(Image.new("RGB", (201, 1))), "more than 200 times"),
    "a piece": (file_of(NOISE)[:2000], "cut short or broken"),
}


@pytest.mark.parametrize(("content", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_what_our_checks_refuse_never_reaches_the_processor(decoder, content, reason):
    with pytest.raises(APIError, match=f"picture 2 of 2: .*{reason}"):
        decoded(decoder, url_of(file_of(two_colors())), url_of(content))


def test_a_picture_that_takes_more_memory_than_is_allowed_ends_its_process_alone(decoder):
    as_set, started = decoder._limits, decoder.processes.num_started
    decoder._limits = PictureLimits(count=4, num_bytes=1 << 20, num_pixels=10**9)  # its head tells of no bomb
    with pytest.raises(APIError, match="more than 277 MiB of memory"):
        decoded(decoder, url_of(file_of(Image.new("1", (14_000, 14_000)))))
    decoder._limits = as_set
    assert len(decoded(decoder, url_of(file_of(two_colors())))) == 1
    assert decoder.processes.num_started <= started + 2


UNFIT = {
    "unknown": (QWEN | {"image_processor_type": "FooImageProcessor"}, "transformers cannot make FooImageProcessor"),
    "code": (
        QWEN | {"auto_map": {"AutoImageProcessor": "own.OwnProcessor"}},
        r"brings its processor as code, which is never run \(own.OwnProcessor\)",
    ),
    "other output": (
        {"image_processor_type": "ViTImageProcessor"},
        "what a ViTImageProcessorPil gives cannot be read back as pixels; allowed are .*Qwen2VLImageProcessorPil",
    ),
    "other norm": (
        QWEN | {"image_std": [0.5, 0.5, 0.4]},
        r"image_std of a Qwen2VLImageProcessorPil is .*0\.4.*, and the tower takes \(0\.5, 0\.5, 0\.5\)",
    ),
    "several pictures of one": (
        GEMMA
        | {"image_mean": HALF, "image_std": HALF, "do_pan_and_scan": True}
        | {"pan_and_scan_min_crop_size": 8, "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.1},
        r"the checkpoint's processor fails with it \(ValueError\)",
    ),
    "sizes by names that transformers has left": (
        QWEN | {"size": {"min_pixels": 32 * 32, "max_pixels": 64 * 64}},
        r"the checkpoint's processor fails with it \(TypeError\)",
    ),
    "another patch": (
        QWEN | {"patch_size": 24},
        r"the checkpoint's processor makes float32 \[48, 48, 3\] of it, which is no picture that the model takes",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), UNFIT.values(), ids=UNFIT)
def test_a_processor_that_cannot_serve_the_model_is_refused_in_words(folder_with, fields, reason):
    decode = decode_by(folder_with(**fields))
    with pytest.raises(PictureError, match=reason):
        decode(Question(file_of(NOISE), False, 1 << 20, 1_000_000, SPEC))


def test_a_checkpoint_without_the_file_of_a_processor_is_refused_and_its_folder_not_told(tmp_path):
    with pytest.raises(PictureError, match="transformers cannot make the checkpoint's processor") as refused:
        decode_by(tmp_path)(Question(b"", False, 1, 1, SPEC))
    assert str(tmp_path) not in str(refused.value)


def of_options(folder: Path | str, images: VisionSpec | None = SPEC) -> PictureDecoder | None:
    """As a server makes it at its start."""
    info: Any = SimpleNamespace(images=images, model_path=str(folder), architecture="LlamaForCausalLM")
    return PictureDecoder.of(info, ServerOptions(image_processor="checkpoint"))


def test_a_server_with_an_unknown_processor_does_not_start(folder_with):
    with pytest.raises(ConfigError) as refused:
        of_options(folder_with(**QWEN | {"image_processor_type": "FooImageProcessor"}))
    message = str(refused.value)
    assert message.startswith("image_processor is 'checkpoint', which cannot run here: transformers cannot make Foo")
    assert message.endswith("; --image-processor atom does")


@pytest.mark.parametrize(("module", "package"), [("PIL", "pillow"), ("transformers", "'transformers>=5.23'")])
def test_a_library_that_is_missing_is_named_at_the_start(folder_with, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"it needs {module}, which is not installed: pip install {package}"):
        of_options(folder_with(**QWEN))


def test_a_model_of_text_alone_has_no_processor_to_run(tmp_path):
    with pytest.raises(ConfigError, match="image_processor is 'checkpoint', and LlamaForCausalLM reads text alone"):
        of_options(tmp_path, images=None)
