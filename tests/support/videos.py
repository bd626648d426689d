"""Videos as clients send them: files, and frames, in ``data:`` URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from pictures import file_of


def grey_frames(count: int, width: int = 64, height: int = 32) -> list[Image.Image]:
    """Each of one grey, the last one the brightest: a codec that loses something leaves them apart."""
    return [Image.new("RGB", (width, height), (40 + 12 * index,) * 3) for index in range(count)]


def video_file(frames: Sequence[Image.Image], form: str = "mp4", codec: str = "libx264", rate: int = 2) -> bytes:
    """A video as PyAV encodes it, of so many frames a second."""
    import av  # pyright: ignore[reportMissingImports]

    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    return file.getvalue()


def url_of_frames(frames: Sequence[Image.Image]) -> str:
    """Frames as PNG, which loses nothing, in the URL that says JPEG."""
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(file_of(frame)).decode() for frame in frames)
