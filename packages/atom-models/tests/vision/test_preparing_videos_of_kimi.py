"""Frames, sizes and times of Kimi-K2.5's videos, beside the formulas of its publisher's code."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_models.checkpoint import CheckpointError
from atom_models.checkpoint.checkpoint import Checkpoint
from atom_models.vision.reading import vision_spec
from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos.kimi import timestamp

CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "media_placeholder_token_id": 163605,
    "text_config": {"hidden_size": 64},
    "vision_config": {"patch_size": 14, "merge_kernel_size": [2, 2], "init_pos_emb_time": 4},
}
# As published.
PROCESSOR = {
    "in_patch_limit": 16384,
    "patch_size": 14,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_kernel_size": 2,
    "fixed_output_tokens": None,
    "patch_limit_on_one_side": 512,
    "in_patch_limit_each_frame": 4096,
    "in_patch_limit_video": None,
    "sample_fps": 2.0,
    "max_num_frames_each_video": None,
    "temporal_merge_kernel_size": 4,
    "timestamp_mode": "hh:mm:ss.fff",
}


def spec_of(of_videos: dict[str, Any] | None = None, **changed: Any) -> VisionSpec:
    """What is read of the published files, with changed fields; the file of videos is that of transformers."""
    processor = {name: value for name, value in (PROCESSOR | changed).items() if value != "left out"}
    found = vision_spec(
        Checkpoint(
            Path("folder"), "safetensors", CONFIG, {},
            preprocessor_config={"media_proc_cfg": processor}, video_preprocessor_config=of_videos or {},
        )
    )  # fmt: skip
    assert found is not None
    return found


def video_of(**changed: Any) -> Any:
    return spec_of(**changed).video


@pytest.mark.parametrize(
    ("num_frames", "fps", "frames"),
    [
        (1, 24.0, [0]),
        (3, 1.0, [0, 1, 2]),  # no more than there are of a second
        (48, 24.0, [0, 16, 31, 47]),
        (5, 4.0, [0, 4]),  # 2.5 is rounded to the even number
        (7, 4.0, [0, 2, 4, 6]),  # and so is 3.5
        (100, 30.0, [0, 16, 33, 50, 66, 82, 99]),
    ],
)
def test_frames_are_taken_from_the_first_to_the_last_one(num_frames: int, fps: float, frames: list[int]):
    assert video_of().sampled(num_frames, fps) == frames


def test_frames_are_those_of_the_published_processor():
    for rate in (2.0, 0.7, 30.0):
        video = video_of(sample_fps=rate)
        for num_frames in (*range(1, 60), 240, 1535, 2047):
            for fps in (1.0, 7.5, 23.976, 29.97, 60.0):
                count = max(round(num_frames * min(rate, fps) / fps), 1)
                expected = np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
                assert video.sampled(num_frames, fps) == expected
    assert len(video_of().sampled(100_000, 25.0)) == 4096  # what a prompt may have
    assert video_of(max_num_frames_each_video=3).sampled(48, 24.0) == [0, 24, 47]


@given(
    num_frames=st.integers(1, 11),
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    each=st.sampled_from([4096, 1024, 64, 20_000, None]),
    together=st.sampled_from([None, 6000, 1000]),
)
def test_frames_have_the_sizes_of_the_published_processor(num_frames, height, width, each, together):
    """Those of a picture with fewer patches, which the frames of one chunk share where they have a bound together."""
    spec = spec_of(in_patch_limit_each_frame=each, in_patch_limit_video=together)
    assert spec.video is not None
    sizes = spec.video.sizes(num_frames, height, width, spec)
    chunks = [min(4, num_frames - first) for first in range(0, num_frames, 4)]
    for size, count in zip(sizes, chunks, strict=True):
        most = min(each or 16384, 16384)  # no frame is larger than a picture may be
        most = most if together is None else min(round(together / count), most)
        alone = replace(spec, max_pixels=most * 14**2)  # which has its test in test_preparing_pictures.py
        assert size == (alone.resized(height, width), alone.fitted(height, width))
        assert spec.num_tokens(*size.fitted) * count <= spec.most_encoded


@given(num_frames=st.integers(1, 9), side=st.integers(1, 3000), most=st.integers(4, 3000))
def test_frames_are_made_small_enough_for_the_room_of_a_step_which_encodes_each_of_them(num_frames, side, most):
    spec = spec_of().within(most)
    assert spec.video is not None
    assert spec.most_encoded <= most
    for chunk, size in enumerate(spec.video.sizes(num_frames, side, 1000, spec)):
        count = min(4, num_frames - 4 * chunk)
        assert spec.num_tokens(*size.fitted) * spec.depth(count) <= most
    whole = spec_of()
    assert 4506 == whole.most_tokens < whole.within(5000).most_encoded <= 5000 < whole.most_encoded
    assert (whole.least_encoded, whole.depth(1), whole.depth(3)) == (4, 1, 3)


def test_a_chunk_is_named_by_the_time_of_its_first_frame_and_the_last_one_may_have_fewer():
    video = video_of()
    assert video.split([0, 16, 31, 47, 60]) == [[0, 16, 31, 47], [60]]
    assert video.seconds([0, 16, 31, 47, 60], 24.0) == [0.0, 2.5]
    assert video.lags(5, 2.0) == [None, None]
    marks = video.marks(None, "<pad>", None)
    assert marks.place == "<|kimi_k25_video_placeholder|>"
    assert video.written([0.0, 2.5], marks) == (
        "00:00:00.000<|media_begin|>video<|media_content|><pad><|media_end|>"
        "00:00:02.500<|media_begin|>video<|media_content|><pad><|media_end|>"
    )
    assert video.marks("<s>", None, "<e>") is None


@pytest.mark.parametrize(
    ("seconds", "form", "text"),
    [
        (0.0, "hh:mm:ss.fff", "00:00:00.000"),
        (1.9999, "hh:mm:ss.fff", "00:00:01.999"),
        (3723.25, "hh:mm:ss.fff", "01:02:03.250"),
        (3723.25, "mm:ss.fff", "02:03.250"),
        (3723.25, "mm:ss", "02:03"),
        (86_400.5, "hh:mm:ss.fff", "00:00:00.500"),
        (59.9999999, "hh:mm:ss.fff", "00:01:00.999"),
    ],
)
def test_times_are_written_as_the_model_was_made_to_read_them(seconds: float, form: str, text: str):
    assert timestamp(seconds, form) == text
    video = video_of(timestamp_mode=form)
    assert video.written([seconds], video.marks(None, "<pad>", None)).startswith(f"{text}<|media_begin|>")


@given(seconds=st.floats(0, 1e6))
def test_times_are_those_of_the_clock(seconds: float):
    clock = datetime.fromtimestamp(seconds, tz=UTC).strftime("%H:%M:%S")
    assert timestamp(seconds, "hh:mm:ss.fff") == f"{clock}.{int((seconds % 1) * 1000):03d}"
    assert timestamp(1e15, "mm:ss") == "46:40"  # whatever a file says of its rate


def test_files_of_the_publisher_and_of_transformers_say_the_same():
    of_transformers = {"fps": 1.5, "max_patches": 900, "temporal_patch_size": 3, "size": {"max_height": 512}}
    gone = dict.fromkeys(("sample_fps", "in_patch_limit_each_frame", "temporal_merge_kernel_size"), "left out")
    own = {"sample_fps": 1.5, "in_patch_limit_each_frame": 900, "temporal_merge_kernel_size": 3}
    assert spec_of(of_transformers, **gone) == spec_of(**own)
    everything = dict.fromkeys(("sample_fps", "in_patch_limit_each_frame", "timestamp_mode"), "left out")
    assert spec_of(**everything) == spec_of()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temporal_merge_kernel_size": 5}, "is 5, and the tower tells 4 frames apart"),
        ({"temporal_merge_kernel_size": 0}, "has 0 as temporal_merge_kernel_size"),
        ({"sample_fps": 0}, "sample_fps is 0; frames are taken at a rate above 0"),
        ({"sample_fps": "2"}, "sample_fps has '2', not a finite number"),
        ({"timestamp_mode": "ss"}, "timestamp_mode is 'ss', .*; it can be one of hh:mm:ss.fff, mm:ss.fff, mm:ss"),
        ({"in_patch_limit_each_frame": -1}, "has -1 as in_patch_limit_each_frame"),
        ({"max_num_frames_each_video": 0}, "has 0 as max_num_frames_each_video"),
        ({"in_patch_limit_video": 2.5}, "has 2.5 as in_patch_limit_video"),
    ],
)
def test_a_processor_that_does_something_else_is_refused_by_the_name_of_its_field(fields: dict[str, Any], words: str):
    with pytest.raises(CheckpointError, match=words):
        spec_of(**fields)
