"""Videos become the frames that the model sees; what is none, or too much, is refused in words."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from atom_core.engine.inputs.fitted_videos import as_video
from atom_core.messages import Video
from atom_core.models import VisionSpec
from atom_server.errors import APIError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.limits import PictureLimits
from pictures import file_of, head_of_png, url_of
from tiny_videos import KIMI, QWEN2, QWEN3, video_spec
from videos import grey_frames, url_of_frames, video_file

needs_pyav = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="there is no PyAV")
HALF = (0.5, 0.5, 0.5)
FRAMES = video_spec(8, QWEN3, min_pixels=1024, max_pixels=10**6, max_frames=12, min_frames=2)
SPEC = VisionSpec(5, 6, 7, 16, 2, min_pixels=32 * 32, max_pixels=64 * 64, mean=HALF, std=HALF, video=FRAMES)
LIMITS = PictureLimits(count=4, num_bytes=1 << 20, num_pixels=1_000_000, num_videos=2, num_video_bytes=1 << 20)


@pytest.fixture(scope="module")
def decoder() -> Iterator[PictureDecoder]:
    decoder = PictureDecoder(SPEC, LIMITS)
    yield decoder
    decoder.close()


def decoded(decoder: PictureDecoder, *urls: str, num_tokens: int = 1000) -> tuple[Video, ...]:
    return asyncio.run(decoder.decode_videos(urls, num_tokens=num_tokens))


def greys(video: Video) -> list[int]:
    """The grey of each frame, as its place among those of `grey_frames`."""
    found = []
    for image in video.images:
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.num_frames, -1)
        found += [round((float(frame.mean()) - 40) / 12) for frame in pixels]
    return found


def test_frames_of_a_url_are_all_seen_as_programs_would_give_them(decoder):
    frames = [Image.effect_noise((70, 50), 90).convert("RGB") for _ in range(5)]
    assert decoded(decoder, url_of_frames(frames)) == (as_video(frames, SPEC),)


@needs_pyav
@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("mp4", "libx264"), ("mov", "libx264"), ("matroska", "libx264"), ("mp4", "mpeg4"), ("webm", "libvpx-vp9"),
        ("avi", "mjpeg"),
    ],
)  # fmt: skip
def test_each_format_is_read_and_two_frames_of_a_second_are_seen(decoder, form, codec):
    [video] = decoded(decoder, url_of(video_file(grey_frames(12), form, codec, rate=6), "video/mp4"))
    assert greys(video) == [0, 4, 7, 11]  # of 2 s, from the first to the last
    assert video.seconds == tuple(FRAMES.seconds([0, 4, 7, 11], 6))
    assert [(image.height, image.width, image.num_frames) for image in video.images] == [(32, 64, 2)] * 2


@needs_pyav
def test_of_a_long_video_no_more_than_the_most_are_seen_and_the_times_are_those_of_the_file(decoder):
    [video] = decoded(decoder, url_of(video_file(grey_frames(18, 32, 32) * 20, rate=10), "video/mp4"))
    assert len(greys(video)) == 12
    assert video.seconds[-1] == pytest.approx(34.3, abs=0.2)


@needs_pyav
def test_a_model_without_times_gets_steps_of_the_rate_at_which_frames_were_taken():
    steps = video_spec(8, QWEN2, min_pixels=1024, max_pixels=4096, positions_per_second=2)
    decoder = PictureDecoder(VisionSpec(5, 6, 7, 16, 2, 1024, 4096, HALF, HALF, video=steps), LIMITS)
    [video] = decoded(decoder, url_of(video_file(grey_frames(16), rate=4), "video/mp4"))
    decoder.close()
    assert greys(video) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [image.lag for image in video.images] == [None, 2, 4, 6]


@needs_pyav
def test_a_model_that_sees_chunks_gets_up_to_four_frames_behind_the_time_of_the_first():
    chunks = video_spec(5, KIMI, picture_frames=4, timestamps="mm:ss")
    spec = VisionSpec(5, None, None, 16, 2, 1024, 4096, HALF, HALF, video=chunks, resizing="padded", max_side=64)
    decoder, url = PictureDecoder(spec, LIMITS), url_of(video_file(grey_frames(15), rate=6), "video/mp4")
    [video] = decoded(decoder, url)
    assert greys(video) == [0, 4, 7, 10, 14]  # of 2.5 s, from the first to the last
    assert [image.num_frames for image in video.images] == [4, 1]
    assert video.seconds == (0.0, 14 / 6)
    with pytest.raises(APIError, match="it takes 4 tokens, and the context has room for 3"):
        decoded(decoder, url, num_tokens=3)
    decoder.close()


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
NO_VIDEOS = {
    "a playlist of other files": (url_of(PLAYLIST, "video/mp4"), "no video of MP4"),
    "a list of files to join": (url_of(b"ffconcat version 1.0\nfile '/etc/passwd'\n", "video/mp4"), "no video of MP4"),
    "a picture": (url_of(file_of(Image.new("RGB", (8, 8))), "video/mp4"), "no video of MP4"),
    "a picture that says so": (url_of(b""), "of type 'image/png'; allowed are video/mp4"),
    "an address": ("https://example.com/a.mp4", "address of https, and nothing is fetched"),
    "a file": ("file:///etc/passwd", "a URL of 'file'"),
    "a head alone": (url_of(b"\x00\x00\x00\x18ftypisom" + bytes(40), "video/mp4"), "cut short or broken$|no pictures"),
    "half a file": (url_of(video_file(grey_frames(8))[:400], "video/mp4"), "cut short or broken$"),
    "a large file": (url_of(bytes(1 << 21), "video/mp4"), "more than 1048576 bytes"),
    "broken base64": ("data:video/mp4;base64,AAAAA", "no base64$"),
    "one frame": (url_of_frames(grey_frames(1)), "a video of 1 frames; it must have 2"),
    "too many frames": (url_of_frames(grey_frames(1, 8, 8) * 5000), "more than 12 frames"),
    "no frames": ("data:video/jpeg;base64,", "no picture of PNG"),
    "a frame of another size": (url_of_frames([*grey_frames(2), Image.new("RGB", (8, 8))]), "8 x 8 pixels"),
    "a huge frame": (f"{url_of_frames(grey_frames(1))},{url_of(head_of_png(60_000, 60_000))[22:]}", "60000 x 60000"),
    "a frame that is no picture": (f"{url_of_frames(grey_frames(2))},aGVsbG8=", "no picture of PNG"),
}


@needs_pyav
@pytest.mark.parametrize(("url", "reason"), NO_VIDEOS.values(), ids=NO_VIDEOS)
def test_what_is_no_video_is_refused_in_words_by_a_decoder_that_goes_on(decoder, url, reason):
    with pytest.raises(APIError, match=f"video 2 of 2: .*({reason})") as caught:
        decoded(decoder, url_of_frames(grey_frames(2)), url)
    assert (caught.value.status, caught.value.code) == (400, "invalid_video")
    assert len(caught.value.message) < 300


@needs_pyav
def test_hostile_files_are_refused(decoder):
    whole = video_file(grey_frames(12), "matroska")
    reasons = {
        "cut short|no pictures|a video of": whole[: len(whole) // 2],
        "1280 x 1280 pixels; at most 1000000": video_file(grey_frames(2, 1280, 1280)),
        "its codec is 'ffv1'": video_file(grey_frames(2), "matroska", "ffv1"),
        "it takes 24 tokens, and the context has room for 23": video_file(grey_frames(24, 64, 64), rate=4),
    }
    for reason, content in reasons.items():
        with pytest.raises(APIError, match=reason):
            decoded(decoder, url_of(content, "video/mp4"), num_tokens=23)


@needs_pyav
def test_a_video_that_takes_too_long_ends_its_process_alone():
    decoder = PictureDecoder(SPEC, LIMITS)
    own = decoder._videos.processes
    own._limits = type(own._limits)(0.02, own._limits.memory_bytes, own._limits.kept_bytes, 60)
    with pytest.raises(APIError, match="takes more than 0.02 s of processor time"):
        decoded(decoder, url_of(video_file(grey_frames(18, 640, 640) * 12, rate=30), "video/mp4"))
    own._limits = LIMITS.of_video_process()
    assert len(decoded(decoder, url_of_frames(grey_frames(2)))) == 1
    decoder.close()


def test_videos_are_counted_before_one_is_looked_at_and_without_pyav_frames_alone_are_taken(decoder, monkeypatch):
    with pytest.raises(APIError, match=r"3 videos; a prompt may have 2 \(--limit-videos-per-prompt\)"):
        decoded(decoder, *["hello"] * 3)
    monkeypatch.setattr(decoder, "_has_pyav", False)
    with pytest.raises(APIError, match=r"need PyAV.*pip install av") as caught:
        decoded(decoder, "data:video/mp4;base64,AAAA")
    assert (caught.value.status, caught.value.code) == (501, "no_pyav")
    assert len(decoded(decoder, url_of_frames(grey_frames(2)))) == 1


def test_a_model_that_sees_pictures_alone_says_so():
    decoder = PictureDecoder(VisionSpec(5, 6, 7, 16, 2, 1024, 4096, HALF, HALF), LIMITS)
    with pytest.raises(APIError, match="sees no videos: send pictures"):
        decoded(decoder, url_of_frames(grey_frames(2)))
    decoder.close()
