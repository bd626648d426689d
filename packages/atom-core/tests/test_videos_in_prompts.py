"""Videos in prompts: their pictures get places and times, and what the model does not take is refused in words."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from atom_core.config.engine_args import EngineArgs
from atom_core.config.images import room_for_images
from atom_core.config.options import ConfigError
from atom_core.engine.inputs import placed_images
from atom_core.engine.inputs.fitted_videos import as_video
from atom_core.engine.inputs.given_prompts import GivenPrompt
from atom_core.engine.inputs.placed_images import place_images
from atom_core.engine.inputs.placed_videos import with_places
from atom_core.errors import InvalidRequestError
from atom_core.kv_cache.hashing import BlockNames, make_block_hasher
from atom_core.messages import Image, PlacedImage, Video
from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import KIMI, QWEN2, QWEN3, VideoMarks
from seeing_models import END, IMAGE, START, VIDEO, picture
from tiny_videos import video_spec

pillow = pytest.importorskip("PIL.Image")

TIMED = video_spec(VIDEO, QWEN3, min_pixels=128, max_pixels=16_384)
STEPPED = video_spec(VIDEO, QWEN2, min_pixels=64, max_pixels=4096, max_frames=6)
HALF = (0.5, 0.5, 0.5)
SPEC = VisionSpec(IMAGE, START, END, 4, 2, 64, 4096, HALF, HALF, video=TIMED)
OTHER = replace(SPEC, video=STEPPED)
CHUNKED = video_spec(IMAGE, KIMI, max_pixels=2048, picture_frames=4, timestamps="mm:ss")
KIMIS = VisionSpec(
    IMAGE, None, None, 4, 2, 64, 4096, HALF, HALF, video=CHUNKED, has_threefold_positions=False, resizing="padded",
    max_side=128,
)  # fmt: skip
MARKS = VideoMarks("<s><v><e>", "<s>", "<v>", "<e>")


def frames(count: int, height: int = 24, width: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def refusal(tokens, images, spec=SPEC) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        place_images(tokens, images, spec)
    return caught.value.message


def test_two_frames_become_one_picture_and_the_last_one_is_repeated():
    given = frames(5, 50, 30)
    video = as_video(given, SPEC, fps=4)
    height, width = TIMED.sizes(5, 50, 30, SPEC)[0].fitted
    made = [pillow.fromarray(one).resize((width, height), pillow.Resampling.BICUBIC).tobytes() for one in given]
    pairs = [(made[0], made[1]), (made[2], made[3]), (made[4], made[4])]
    assert video == Video(tuple(Image.of_video(height, width, pair, None) for pair in pairs), (0.125, 0.625, 1.0))
    assert as_video(list(map(pillow.fromarray, given)), SPEC, fps=4) == as_video(video, SPEC) == video


def test_texts_get_the_places_of_pictures_and_their_times_where_the_model_was_made_so():
    video = as_video(frames(3), SPEC, fps=1)
    assert with_places("a<s><v><e>b", [video], SPEC, MARKS).text == "a<0.5 seconds><s><v><e><2.0 seconds><s><v><e>b"
    assert with_places("a<s><v><e>b", [video], OTHER, MARKS).text == "a<s><v><v><e>b"
    two = with_places("<s><v><e><s><v><e>", [video, as_video(frames(2), SPEC)], SPEC, MARKS)
    assert two.text == "<0.5 seconds><s><v><e><2.0 seconds><s><v><e><0.2 seconds><s><v><e>"
    for text in ("a", "<s><v><e>" * 2, "<v>", "<s><v>"):
        with pytest.raises(InvalidRequestError, match=f"has {text.count('<v>')} video tokens, and there are 1 videos"):
            with_places(text, [video], SPEC, MARKS)


def test_a_chunk_of_kimi_has_up_to_four_frames_which_are_resized_and_filled_up_with_black():
    given = frames(5, 50, 60)
    video = as_video(given, KIMIS, fps=4)
    [size, last] = CHUNKED.sizes(5, 50, 60, KIMIS)
    assert size == last == ((42, 50), (48, 56))
    made = []
    for one in given:
        filled = np.zeros((48, 56, 3), np.uint8)
        filled[:42, :50] = np.asarray(pillow.fromarray(one).resize((50, 42), pillow.Resampling.BICUBIC))
        made.append(filled.tobytes())
    chunks = Image.of_video(48, 56, made[:4], None), Image.of_video(48, 56, made[4:], None)
    assert video == Video(chunks, (0.0, 1.0))


def test_texts_of_kimi_say_where_pictures_and_videos_are_though_all_have_one_token():
    class Named:
        """A tokenizer that knows one token."""

        def id_to_token(self, token_id: int) -> str | None:
            return "<pad>" if token_id == IMAGE else None

    def given(text: str, *, count: int = 2) -> GivenPrompt:
        shown = {"images": stills, "videos": [frames(5, seed=1), frames(2, seed=2)][:count]}
        return GivenPrompt.of({"prompt": text, **shown}, KIMIS, Named())  # type: ignore[arg-type]

    stills = [picture(1), picture(2)]
    first, second = (as_video(frames(count, seed=count % 4), KIMIS).images for count in (5, 2))
    place, chunk = "<|kimi_k25_video_placeholder|>", "<|media_begin|>video<|media_content|><pad><|media_end|>"
    shown = given(f"a{place}<pad>b{place}<pad>")
    assert shown.text == f"a00:00{chunk}00:02{chunk}<pad>b00:00{chunk}<pad>"
    assert shown.images == [*first, stills[0], *second, stills[1]]
    assert given(f"{place}<pad><pad>{place}").images == [*first, *stills, *second]
    with pytest.raises(InvalidRequestError, match="has 1 video tokens, and there are 2 videos: .*k25_video"):
        given(f"{place}<pad><pad>")
    tokens = {"prompt_token_ids": [IMAGE, IMAGE, 5], "images": stills[:1], "videos": [frames(2)]}
    with pytest.raises(InvalidRequestError, match="give all of them as 'images', in order"):
        GivenPrompt.of(tokens, KIMIS)
    alone = GivenPrompt.of({"prompt_token_ids": [IMAGE, 5], "videos": [frames(2, seed=2)]}, KIMIS)
    assert alone.images == list(second)


def test_chunks_of_kimi_are_placed_in_the_order_in_which_they_come():
    chunks, still = as_video(frames(5), KIMIS).images, picture(1, 1, 2)
    size = KIMIS.num_tokens(chunks[0].height, chunks[0].width)
    placed = place_images([5, IMAGE, 6, IMAGE, IMAGE, 7], [chunks[0], still, chunks[1]], KIMIS)
    assert placed.token_ids == [5, *[IMAGE] * size, 6, *[IMAGE] * (2 + size), 7]
    assert placed.images == (
        PlacedImage(chunks[0], 1, size, depth=4), PlacedImage(still, size + 2, 2),
        PlacedImage(chunks[1], size + 4, size),
    )  # fmt: skip
    assert [one.num_encoded for one in placed.images] == [4 * size, 2, size]
    assert "has 2 image tokens" in refusal([IMAGE, IMAGE, 5], chunks[:1], KIMIS)
    five = Image.of_video(24, 40, [bytes(2880)] * 5, None)
    assert "5 frames; it must have 1 to 4" in refusal([IMAGE, 5], [five], KIMIS)
    wide = Image.of_video(64, 96, [bytes(18_432)] * 4, None)
    assert "96 tokens in each of 4 frames; all of these can be 244" in refusal([IMAGE, 5], [wide], KIMIS)


def test_a_step_has_room_for_all_frames_of_a_chunk(monkeypatch):
    """However short prompts are; and where it has room for less, frames are made smaller."""
    monkeypatch.setattr(room_for_images, "vision_spec", lambda checkpoint: KIMIS)

    def room(max_model_len: int = 8, **given: int) -> tuple[VisionSpec, int]:
        args = EngineArgs(**given)  # type: ignore[arg-type]
        images = room_for_images.resolve_images(args, None, max_model_len, [])  # type: ignore[arg-type]
        assert images is not None
        return images.spec, room_for_images.image_token_budget(args, images, 10)

    assert room() == (KIMIS, 32)
    assert room(10_000) == (KIMIS, KIMIS.most_encoded)
    spec, most = room(10_000, max_num_image_tokens=21)
    [chunk, last] = as_video(frames(5, 60, 60), spec).images
    assert (most, spec.num_tokens(chunk.height, chunk.width)) == (21, 4)
    assert 4 < spec.num_tokens(last.height, last.width) <= 21
    with pytest.raises(ConfigError, match="max_num_image_tokens is 3, and the smallest picture has 4"):
        room(max_num_image_tokens=3)


def test_pictures_and_videos_stand_in_the_places_of_their_own_tokens():
    video, still = as_video(frames(4), SPEC), picture(1, 1, 2)
    first, second = video.images
    tokens = [5, VIDEO, 6, IMAGE, VIDEO, 7]
    placed = place_images(tokens, [still, *video.images], SPEC)
    size = SPEC.num_tokens(first.height, first.width)
    assert placed.token_ids == [5, *[VIDEO] * size, 6, *[IMAGE] * 2, *[VIDEO] * size, 7]
    assert placed.images == (
        PlacedImage(first, 1, size), PlacedImage(still, size + 2, 2), PlacedImage(second, size + 4, size)
    )  # fmt: skip
    assert place_images(tokens, [*video.images, still], SPEC) == placed


def test_pictures_of_a_video_without_times_follow_each_other():
    video = as_video(frames(6), OTHER)
    assert [image.lag for image in video.images] == [None, 4, 8]
    assert len(place_images([VIDEO] * 3 + [5], video.images, OTHER).images) == 3
    reason = "goes on a video, and no picture of it ends there"
    assert reason in refusal([VIDEO, 9, VIDEO, VIDEO, 5], video.images, OTHER)
    assert reason in refusal([VIDEO, 5], video.images[1:2], OTHER)
    assert reason in refusal([VIDEO, IMAGE, VIDEO, VIDEO, 5], [*video.images, picture(1)], OTHER)


LATE = Image.of_video(24, 40, [bytes(2880)] * 2, 1)
FIRST = Image.of_video(24, 40, [bytes(2880)] * 2, None)


@pytest.mark.parametrize(
    ("tokens", "images", "words"),
    [
        ([VIDEO, 5], [], r"has 1 video tokens \(504\), and its videos have 0 pictures of 2 frames"),
        ([5], [FIRST], "has 0 video tokens .* have 1 pictures of 2 frames"),
        ([IMAGE, 5], [FIRST], "has 0 video tokens"),
        ([VIDEO, 5], [picture(1)], "has 1 video tokens"),
        ([IMAGE, VIDEO, 5], [FIRST], "has 2 image tokens .503, 504., and there are 1 pictures"),
        ([5, VIDEO], [FIRST], "ends with a picture"),
        ([VIDEO, 5], [LATE], "a lag of 1; it must be None, as texts say when it was"),
        ([VIDEO, 5], [Image.of_video(24, 40, [bytes(2880)] * 3, None)], "3 frames; it must have 2"),
        ([VIDEO, 5], [Image.of_video(24, 20, [bytes(1440)] * 2, None)], "both sides must be multiples of 8"),
        ([VIDEO, 5], [Image.of_video(72, 72, [bytes(15552)] * 2, None)], "it can have 4096 of them"),
        ([VIDEO, 5], [msgspec.structs.replace(FIRST, pixels=bytes(9))], "and 9 bytes; there are 3"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_take_is_refused(tokens, images, words):
    with pytest.raises(InvalidRequestError, match=words):
        place_images(tokens, images, SPEC)


def test_a_model_that_sees_no_videos_says_so():
    blind = replace(SPEC, video=None)
    assert "this model sees none" in refusal([VIDEO, 5], [FIRST], blind)
    assert place_images([VIDEO, 5], (), blind).token_ids == [VIDEO, 5]  # a token like others
    for given in (frames(2), [pillow.new("RGB", (8, 8))] * 2):
        with pytest.raises(InvalidRequestError, match="this model sees no videos"):
            as_video(given, blind)
    with pytest.raises(InvalidRequestError, match="has 1 pictures, and this model reads text alone"):
        GivenPrompt.of({"prompt": "a", "videos": [frames(2)]}, None)
    with pytest.raises(InvalidRequestError, match="no tokens that stand for videos"):
        GivenPrompt.of({"prompt": "a", "videos": [frames(2)]}, SPEC)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (frames(1), "a video of 1 frames; it must have 2 at least"),
        (frames(0), "a video of 0 frames"),
        (frames(7), "has 7 frames; at most 6 are seen"),
        (frames(2)[0], r"an array \[24, 40, 3\]; it must be uint8 \[frames"),
        ("a file", "a video is a str"),
        ([frames(1)[0], frames(1, 24, 48)[0]], "frame 1 of a video has 48 x 24 pixels, and the first one 40 x 24"),
        (frames(2, 1, 300), "more than 200 times the other"),
        (frames(2).astype(float), "it must be uint8"),
    ],
)
def test_what_is_no_video_is_refused(given, words):
    with pytest.raises(InvalidRequestError, match=words):
        as_video(given, OTHER)


def test_a_prompt_has_2048_frames_at_most(monkeypatch):
    assert placed_images.MAX_OF_VIDEOS == 1024
    monkeypatch.setattr(placed_images, "MAX_OF_VIDEOS", 3)
    assert len(place_images([VIDEO] * 3 + [5], [FIRST] * 3, SPEC).images) == 3
    assert "more than 6 frames" in refusal([VIDEO] * 4 + [5], [FIRST] * 4)


def test_videos_that_differ_in_a_frame_or_in_a_time_never_share_a_block():
    """In the first block that has a token of what differs, and in all behind it."""

    def names(images: tuple[Image, ...], tokens: int = 15) -> list[bytes]:
        placed = tuple(PlacedImage(image, index * tokens, tokens) for index, image in enumerate(images))
        found: list[bytes] = []
        BlockNames(make_block_hasher("xxhash64"), 16).extend(found, [VIDEO] * 45, 2, salt="", images=placed)
        return found

    given = frames(6)
    video = as_video(given, OTHER)
    assert names(video.images) == names(as_video(given.copy(), OTHER).images)
    for frame in range(6):
        changed = given.copy()
        changed[frame, 12, 20] ^= 255
        other = as_video(changed, OTHER)
        same = [one == another for one, another in zip(names(video.images), names(other.images), strict=True)]
        assert same == [frame > 3, False]
    chunks = [as_video(each, KIMIS) for each in (given, given[::-1])]
    assert not set(names(chunks[0].images)) & set(names(chunks[1].images))
    slower = as_video(given, OTHER, fps=1)
    assert slower.images[0] == video.images[0]
    assert names(slower.images)[0] != names(video.images)[0]
    assert Image.of_video(24, 40, [bytes(2880)] * 2, None).digest != Image.of(48, 40, bytes(5760)).digest
