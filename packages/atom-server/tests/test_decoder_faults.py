"""A process that decodes pictures or videos is killed, or stopped: another one decodes what comes next."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from atom_core.models import VisionSpec
from atom_server.errors import APIError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.limits import PictureLimits
from pictures import file_of, two_colors, url_of
from tiny_videos import QWEN3, video_spec
from videos import grey_frames, url_of_frames

HALF = (0.5, 0.5, 0.5)
FRAMES = video_spec(8, QWEN3, min_pixels=1024, max_pixels=10**6, max_frames=12, min_frames=2)
SPEC = VisionSpec(5, 6, 7, 16, 2, min_pixels=32 * 32, max_pixels=64 * 64, mean=HALF, std=HALF, video=FRAMES)


@pytest.fixture
def decoder() -> Iterator[PictureDecoder]:
    decoder = PictureDecoder(SPEC, PictureLimits(count=4, num_bytes=1 << 20, num_pixels=1_000_000))
    yield decoder
    decoder.close()


def picture(decoder: PictureDecoder) -> int:
    url = url_of(file_of(two_colors()))
    return len(asyncio.run(decoder.decode([url], num_tokens=1000)))


def video(decoder: PictureDecoder) -> int:
    return len(asyncio.run(decoder.decode_videos([url_of_frames(grey_frames(2))], num_tokens=1000)))


Decode = Callable[[PictureDecoder], int]
BOTH = pytest.mark.parametrize(("decode", "kind"), [(picture, "_pictures"), (video, "_videos")])


def idle_one(decoder: PictureDecoder, kind: str) -> Any:
    [process] = getattr(decoder, kind).processes.idle
    return process._process


@BOTH
def test_one_that_was_killed_refuses_nothing_that_comes_later(decoder: PictureDecoder, decode: Decode, kind: str):
    assert decode(decoder) == 1
    killed = idle_one(decoder, kind)
    killed.kill()
    killed.wait()
    assert decode(decoder) == 1
    assert idle_one(decoder, kind).pid != killed.pid


@BOTH
def test_one_that_is_stopped_is_ended_and_its_client_may_come_again(decoder: PictureDecoder, decode: Decode, kind: str):
    assert decode(decoder) == 1
    processes, stopped = getattr(decoder, kind).processes, idle_one(decoder, kind)
    as_set = processes._limits
    processes._limits = msgspec.structs.replace(as_set, clock_seconds=0.2)
    os.kill(stopped.pid, signal.SIGSTOP)
    with pytest.raises(APIError, match=r"1 of 1: its decoder did not answer within 0\.2 s: try again later") as refused:
        decode(decoder)
    assert (refused.value.status, "retry-after" in refused.value.headers) == (503, True)
    assert stopped.poll() == -signal.SIGKILL
    processes._limits = as_set
    assert decode(decoder) == 1


@BOTH
def test_one_that_is_killed_while_it_decodes_tells_its_client_alone(decoder: PictureDecoder, decode: Decode, kind: str):
    assert decode(decoder) == 1
    killed = idle_one(decoder, kind)
    os.kill(killed.pid, signal.SIGSTOP)  # so that it has its work, and no answer yet, when it is killed
    threading.Timer(0.2, killed.kill).start()
    # The kernel kills for want of memory in this way, so the picture is blamed.
    with pytest.raises(APIError, match=r"1 of 1: takes more than \d+ MiB of memory, or is more than"):
        decode(decoder)
    assert decode(decoder) == 1
