"""Frames, sizes and times of videos, beside those of transformers' processors."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_of_videos

from atom_models.vision.positions import threefold_positions
from atom_models.vision.videos import QWEN2, QWEN3, VideoSpec
from tiny_pictures import SPEC
from tiny_videos import video_spec

SPREAD, STEPPED = video_spec(1, QWEN3), video_spec(1, QWEN2)


def size_of(video: VideoSpec, num_frames: int, height: int, width: int, *, unit: int, most_pixels: int) -> Any:
    """The one size of all frames, where a picture may have so many pixels."""
    seen = replace(SPEC, patch_size=unit // 2, max_pixels=most_pixels)
    [(resized, fitted)] = set(video.sizes(num_frames, height, width, seen))
    assert resized == fitted
    return fitted


@pytest.fixture(scope="module")
def qwen2_processor() -> Iterator[Any]:
    """transformers' class, which torchvision alone keeps from being imported: choosing frames needs none of it."""
    parts = ("torchvision", "transforms", "v2", "functional")
    names = [".".join(parts[:count]) for count in range(1, 5)]
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
    file = Path(transformers.__file__).parent / "models/qwen2_vl/video_processing_qwen2_vl.py"
    found: Any = importlib.util.spec_from_file_location("transformers.models.qwen2_vl.without_torchvision", file)
    sys.modules[found.name] = module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
        yield module.Qwen2VLVideoProcessor
    finally:
        for name in (*missing, found.name):
            del sys.modules[name]


LENGTHS = [*range(2, 60), 100, 240, 241, 299, 768, 1535, 1536, 1537, 4000, 20_001]
RATES = [1.0, 7.5, 12.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0]


def test_frames_are_those_that_transformers_chooses(qwen2_processor):
    settings = {"min_frames": 4, "max_frames": 768, "fps": 2, "num_frames": None, "temporal_patch_size": 2}
    own = SimpleNamespace(**settings)
    for length in LENGTHS:
        for fps in RATES:
            about: Any = SimpleNamespace(total_num_frames=length, fps=fps)
            assert SPREAD.sampled(length, fps) == Qwen3VLVideoProcessor.sample_frames(own, about).tolist()  # type: ignore[arg-type]
            assert STEPPED.sampled(length, fps) == qwen2_processor.sample_frames(own, about).tolist()


@given(
    num_frames=st.integers(2, 800),
    height=st.integers(1, 2500),
    width=st.integers(1, 2500),
    limits=st.sampled_from([(131_072, 786_432), (4096, 25_165_824), (100_352, 602_112), (64, 6400)]),
)
def test_frames_are_brought_to_the_sizes_of_transformers(num_frames, height, width, limits):
    pixels = dict(zip(("min_pixels", "max_pixels"), limits, strict=True))
    for spec, unit, theirs in (
        (SPREAD, 32, lambda: smart_resize_of_videos(num_frames, height, width, 2, 32, *limits)),
        (STEPPED, 28, lambda: smart_resize(height, width, 28, *limits)),
    ):
        ours = lambda spec=spec, unit=unit: size_of(  # noqa: E731
            replace(spec, **pixels), num_frames, height, width, unit=unit, most_pixels=10**9
        )
        try:
            expected = theirs()
        except ValueError:
            with pytest.raises(ValueError, match="one side is more than 200 times the other"):
                ours()
        else:
            assert ours() == expected


def test_no_frame_is_larger_than_a_picture_may_be():
    """So that a step which has room for any picture has room for any part of a video."""
    for spec in (SPREAD, STEPPED):
        for count in (2, 3, 5, 30):
            for most in (200_000, 20_000, 28 * 28):
                rows, columns = size_of(spec, count, 1080, 1920, unit=28, most_pixels=most)
                assert 0 < rows * columns <= most


def test_times_are_those_of_transformers():
    own: Any = None
    for length, fps in ((2, 24.0), (31, 29.97), (240, 12.0), (5000, 60.0)):
        frames = SPREAD.sampled(length, fps)
        for part in (frames, frames[:-1] or frames):
            theirs = Qwen3VLProcessor._calculate_timestamps(own, list(part), fps, 2)
            assert SPREAD.seconds(part, fps) == theirs
            assert len(theirs) == len(SPREAD.split(part))


def test_pictures_of_a_video_without_texts_stand_in_time_by_the_rule_of_qwen2_5():
    """Steps are cut after they are counted, in float32, as transformers does it."""
    assert SPREAD.lags(5, 2.0) == [None] * 3
    assert STEPPED.lags(6, 2.0) == [None, 4, 8]
    assert replace(STEPPED, positions_per_second=2).lags(10, 3.2) == [None, 1, 2, 3, 5]
    assert replace(STEPPED, positions_per_second=2).lags(6, 24.0) == [None, 0, 0]


def test_all_pictures_of_a_video_begin_at_one_position_and_text_goes_on_behind_the_largest():
    tokens = [9, *[0] * 6, 9]
    late = [(1, 8, 16), (3, 8, 16, 1), (5, 8, 16, 5)]
    positions, delta = threefold_positions(tokens, late, SPEC)
    assert positions.tolist() == [[0, 1, 1, 2, 2, 6, 6, 7], [0, 1, 1, 1, 1, 1, 1, 7], [0, 1, 2, 1, 2, 1, 2, 7]]
    assert delta == 0
    early, _ = threefold_positions(tokens, [(1, 8, 16), (3, 8, 16, 0), (5, 8, 16, 0)], SPEC)
    assert early[:, -1].tolist() == [3, 3, 3]
    apart, _ = threefold_positions(tokens, [(1, 8, 16), (3, 8, 16), (5, 8, 16)], SPEC)
    assert apart[1].tolist() == [0, 1, 1, 3, 3, 5, 5, 7]
    with pytest.raises(ValueError, match="goes on a video, and does not follow"):
        threefold_positions(tokens, [(1, 8, 16), (4, 8, 16, 1)], SPEC)


def test_a_video_of_one_frame_is_refused():
    for spec in (SPREAD, STEPPED):
        with pytest.raises(ValueError, match="a video of 1 frames; it must have 2 at least"):
            spec.sampled(1, 24.0)
        with pytest.raises(ValueError, match="a video of 1 frames"):
            size_of(spec, 1, 100, 100, unit=28, most_pixels=10**6)
    assert np.diff(STEPPED.sampled(9, 24.0)).min() > 0
