"""Pictures as clients send them: files in ``data:`` URLs."""

from __future__ import annotations

import base64
import io
import struct
import zlib

from PIL import Image

ORIENTATION = 0x0112


def two_colors(width: int = 64, height: int = 32) -> Image.Image:
    """Red on the left, blue on the right."""
    picture = Image.new("RGB", (width, height), (255, 0, 0))
    picture.paste((0, 0, 255), (width // 2, 0, width, height))
    return picture


def file_of(picture: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """A picture as Pillow saves it."""
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def url_of(content: bytes, media_type: str = "image/png") -> str:
    """The ``data:`` URL of a file."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def turned(orientation: int, picture: Image.Image | None = None) -> bytes:
    """A JPEG that says how it is to be turned."""
    about = Image.Exif()
    about[ORIENTATION] = orientation
    return file_of(picture or two_colors(), "JPEG", exif=about, quality=95)


def animated(form: str) -> bytes:
    """Two pictures, one after the other."""
    return file_of(two_colors(), form, save_all=True, append_images=[Image.new("RGB", (64, 32))])


def head_of_png(width: int, height: int) -> bytes:
    """A PNG that says that it is so large, of hardly any bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
