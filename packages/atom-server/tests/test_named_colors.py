"""What a picture shows comes out of the server as a word, by a model whose weights were written by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from atom_server import ServerOptions
from color_naming import COLORS, NOTHING, make_color_naming
from pictures import file_of, url_of

RGB = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
BLACK = (0, 0, 0)


@pytest.fixture(scope="module")
def naming(make_server, tmp_path_factory):
    folder = make_color_naming(tmp_path_factory.mktemp("naming") / "tiny")
    # Nothing comes from an earlier request: pictures of a prompt are encoded together.
    each_anew = {"enable_prefix_caching": False, "image_cache_memory": 0}
    with make_server(ServerOptions(served_model_name="tiny"), model=folder, **each_anew) as running:
        yield running


def plain(color, width=16, height=16):
    return Image.new("RGB", (width, height), RGB.get(color, color))


def halves(left, right, *, edge):
    """A picture of 64 x 32 pixels, of one color as far as `edge` and of another one from there on."""
    picture = plain(right, 64, 32)
    picture.paste(plain(left, edge, 32))
    return picture


def pattern(*colors, size=32):
    """Stripes a pixel wide, whose colors take turns."""
    row = [RGB[colors[column % len(colors)]] for column in range(size)]
    return Image.fromarray(np.array([row] * size, dtype=np.uint8))


def said(server, *parts, **fields):
    """What the model says of texts and pictures."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url_of(file_of(part))}}
        for part in parts
    ]
    answer = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": content}], temperature=0, **fields
    )
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("size", [(16, 16), (48, 16), (8, 8), (200, 120)], ids=str)
def test_the_color_of_a_picture_of_any_size_is_named(naming, color, size):
    assert said(naming, plain(color, *size), "which color?") == color


@pytest.mark.parametrize("color", [(200, 40, 60), (90, 160, 70), (10, 110, 140)], ids=COLORS)
def test_what_is_not_pure_has_the_name_of_what_it_has_most_of(naming, color):
    assert said(naming, plain(color)) == COLORS[int(np.argmax(color))]


def test_without_a_picture_or_with_a_black_one_there_is_nothing(naming):
    assert said(naming, "which color? red or blue?") == NOTHING
    assert said(naming, plain(BLACK), "which color?") == NOTHING


@pytest.mark.parametrize("first", COLORS)
@pytest.mark.parametrize("last", COLORS)
def test_the_last_picture_is_named_however_large_the_first_is(naming, first, last):
    small, large = plain(last, 8, 8), plain(first, 64, 64)
    assert said(naming, large, small, "which color?") == last
    assert said(naming, small, large, "which color?") == first
    assert said(naming, f"{first}, look:", large, "and here:", small, f"is it {first}?") == last


def test_fine_patterns_have_the_color_of_most_stripes(naming):
    for most, other in zip(COLORS, (*COLORS[1:], COLORS[0]), strict=True):
        assert said(naming, pattern(most, most, other)) == most
        assert said(naming, pattern(other, most, other)) == other


def test_each_part_of_a_picture_has_the_color_of_the_whole(naming):
    for edge, color in ((40, "red"), (24, "blue")):
        picture = halves("red", "blue", edge=edge)
        assert said(naming, picture) == said(naming, picture.transpose(Image.Transpose.ROTATE_90)) == color
    # The decoder looks at nothing that is black, and so at the red part alone, if that did not know of the others.
    assert said(naming, halves("red", BLACK, edge=40)) == "red"
    assert said(naming, halves("red", BLACK, edge=24)) == NOTHING


def test_requests_that_run_together_are_told_of_their_own_pictures(naming):
    colors = [*COLORS, *COLORS[::-1]] * 3
    with ThreadPoolExecutor(len(colors)) as threads:
        assert list(threads.map(lambda color: said(naming, plain(color, 40, 24)), colors)) == colors
