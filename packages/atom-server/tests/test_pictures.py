"""Pictures become pixels of the size that the model takes; what is none, or too much, is refused in words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from PIL import Image

from atom_core.models import VisionSpec
from atom_server.errors import APIError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.limits import PictureLimits
from pictures import animated, file_of, head_of_png, turned, two_colors, url_of

HALF = (0.5, 0.5, 0.5)
SPEC = VisionSpec(5, 6, 7, 16, 2, min_pixels=32 * 32, max_pixels=64 * 64, mean=HALF, std=HALF)
RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>'


@pytest.fixture(scope="module")
def decoder() -> Iterator[PictureDecoder]:
    decoder = PictureDecoder(SPEC, PictureLimits(count=4, num_bytes=1 << 20, num_pixels=1_000_000))
    yield decoder
    decoder.close()


def decoded(decoder: PictureDecoder, *urls: str, num_tokens: int = 1000):
    return asyncio.run(decoder.decode(urls, num_tokens=num_tokens))


def corners(decoder: PictureDecoder, content: bytes) -> tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    """Height and width, and the first and the last pixel, rounded to 0 or 255 as far as they are near."""
    [image] = decoded(decoder, url_of(content))
    near = [255 if value > 235 else 0 if value < 20 else value for value in image.pixels]
    return (image.height, image.width), tuple(near[:3]), tuple(near[-3:])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_each_format_is_read(decoder, form):
    assert corners(decoder, file_of(two_colors(), form)) == ((32, 64), RED, BLUE)


def test_of_a_photo_with_several_pictures_the_first_counts(decoder):
    photo = file_of(two_colors(), "MPO", save_all=True, append_images=[Image.new("RGB", (64, 32))])
    assert corners(decoder, photo) == ((32, 64), RED, BLUE)


def test_a_picture_is_resized_as_pillow_does_it_by_cubic_curves(decoder):
    noise = Image.effect_noise((200, 150), 90).convert("RGB")
    [image] = decoded(decoder, url_of(file_of(noise)))
    assert (image.height, image.width) == SPEC.fitted(150, 200)
    assert image.pixels == noise.resize((image.width, image.height), Image.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize(
    ("orientation", "size", "first", "last"),
    [(1, (32, 64), RED, BLUE), (3, (32, 64), BLUE, RED), (6, (64, 32), RED, BLUE), (8, (64, 32), BLUE, RED)],
)
def test_a_picture_is_turned_as_its_file_says(decoder, orientation, size, first, last):
    assert corners(decoder, turned(orientation)) == (size, first, last)


TRANSPARENT = {
    "RGBA": Image.new("RGBA", (32, 32), (255, 0, 0, 0)),
    "LA": Image.new("LA", (32, 32), (0, 0)),
    "palette": Image.new("RGBA", (32, 32), (255, 0, 0, 0)).quantize(4),
}


@pytest.mark.parametrize("picture", TRANSPARENT.values(), ids=TRANSPARENT)
def test_white_is_behind_what_is_transparent(decoder, picture):
    assert corners(decoder, file_of(picture))[1:] == (WHITE, WHITE)


COLORS = {
    "16 bits of grey": (file_of(Image.new("I;16", (32, 32), 40_000)), (156,) * 3),
    "CMYK": (file_of(Image.new("CMYK", (32, 32), (0, 255, 255, 0)), "JPEG"), RED),
    "one bit": (file_of(Image.new("1", (32, 32), 1)), WHITE),
    "grey": (file_of(Image.new("L", (32, 32), 0)), BLACK),
    "a palette": (file_of(two_colors().quantize(4)), RED),
}


@pytest.mark.parametrize(("content", "color"), COLORS.values(), ids=COLORS)
def test_all_colors_become_red_green_and_blue(decoder, content, color):
    assert corners(decoder, content)[1] == color


NO_PICTURES = {
    "too many pixels by its head": (url_of(head_of_png(60_000, 60_000)), "60000 x 60000 pixels; at most 1000000"),
    "too many pixels": (url_of(file_of(Image.new("1", (1001, 1000)))), "1001 x 1000 pixels"),
    "cut short": (url_of(file_of(Image.effect_noise((64, 64), 90))[:-900]), "cut short or broken$"),
    "a head alone": (url_of(head_of_png(32, 32)), "cut short or broken$"),
    "no picture": (url_of(b"hello"), "no picture of PNG, JPEG, WEBP or GIF"),
    "another format": (url_of(file_of(two_colors(), "BMP")), "no picture of PNG, JPEG, WEBP or GIF"),
    "SVG": (url_of(SVG, "image/svg+xml"), "of type 'image/svg\\+xml'; allowed are image/png"),
    "SVG that says it is PNG": (url_of(SVG), "no picture of PNG"),
    "text": ("data:,hello", "of type 'text/plain'"),
    "no base64": ("data:image/png,hello", "not marked as base64"),
    "broken base64": ("data:image/png;base64,AAAAA", "no base64$"),
    "nothing": ("data:image/png;base64,", "no picture of PNG"),
    "an address": ("https://example.com/a.png", "address of https, and nothing is fetched"),
    "a file": ("file:///etc/passwd", "a URL of 'file'"),
    "no URL": ("hello", "it is no URL"),
    "a moving GIF": (url_of(animated("GIF")), "animated"),
    "a moving PNG": (url_of(animated("PNG")), "animated"),
    "a moving WEBP": (url_of(animated("WEBP")), "animated"),
    "a thread": (url_of(file_of(Image.new("RGB", (201, 1)))), "more than 200 times"),
    "a large file": (url_of(bytes(1 << 21)), "more than 1048576 bytes"),
    "a file of a byte too much": (url_of(bytes((1 << 20) + 1)), "has 1048577 bytes; at most 1048576"),
}


@pytest.mark.parametrize(("url", "reason"), NO_PICTURES.values(), ids=NO_PICTURES)
def test_what_is_no_picture_is_refused_in_words_by_a_decoder_that_goes_on(decoder, url, reason):
    with pytest.raises(APIError, match=f"picture 2 of 2: .*({reason})") as caught:
        decoded(decoder, url_of(file_of(two_colors())), url)
    assert (caught.value.status, caught.value.code) == (400, "invalid_image")
    assert len(caught.value.message) < 300


def test_pictures_of_a_prompt_are_counted_before_one_is_looked_at(decoder):
    started = decoder.processes.num_started
    with pytest.raises(APIError, match=r"10000 pictures; a prompt may have 4 \(--limit-images-per-prompt\)"):
        decoded(decoder, *["hello"] * 10_000)
    assert decoder.processes.num_started == started


def test_pictures_for_which_the_context_has_no_room_are_refused(decoder):
    url = url_of(file_of(two_colors()))  # two tokens
    assert len(decoded(decoder, url, url, num_tokens=4)) == 2
    with pytest.raises(APIError, match="more tokens than the context has room for"):
        decoded(decoder, url, url, num_tokens=3)


def test_a_picture_that_takes_more_memory_than_is_allowed_ends_its_process_alone():
    """A bomb that its head does not tell: the limits are those of few pixels, and the picture has more."""
    small = PictureDecoder(SPEC, PictureLimits(count=4, num_bytes=1 << 20, num_pixels=1_000_000))
    small._limits = PictureLimits(count=4, num_bytes=1 << 20, num_pixels=10**9)
    bomb = url_of(file_of(Image.new("1", (14_000, 14_000))))
    with pytest.raises(APIError, match="more than 277 MiB of memory"):
        decoded(small, bomb)
    assert len(decoded(small, url_of(file_of(two_colors())))) == 1
    assert small.processes.num_started == 2
    small.close()


def test_the_event_loop_goes_on_while_pictures_are_decoded(decoder):
    large = url_of(file_of(Image.effect_noise((1000, 1000), 90).convert("RGB"), "JPEG", quality=80))

    async def turns_meanwhile() -> int:
        work, turns = asyncio.ensure_future(decoder.decode([large] * 4, num_tokens=1000)), 0
        while not work.done():
            await asyncio.sleep(0.001)
            turns += 1
        await work
        return turns

    assert asyncio.run(turns_meanwhile()) > 10


def test_decoders_give_way_to_all_others(decoder):
    decoded(decoder, url_of(file_of(two_colors())))
    [process] = decoder.processes.idle[-1:]
    assert os.getpriority(os.PRIO_PROCESS, process._process.pid) >= 10
