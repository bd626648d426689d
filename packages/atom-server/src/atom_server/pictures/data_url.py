"""What a part of a message says of a picture: a ``data:`` URL, whose base64 nobody looks into here."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

# Frames, one after the other: their base64 is separated by commas.
FRAMES = "video/jpeg"
# The types of files by the ends of their names; systems have other types for some of them.
_FILES = {
    "image": {
        ".png": "image/png",
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".webp": "image/webp",
        ".gif": "image/gif",
    },
    "video": {
        ".mp4": "video/mp4",
        ".mov": "video/quicktime",
        ".webm": "video/webm",
        ".mkv": "video/x-matroska",
        ".avi": "video/x-msvideo",
    },
}
MEDIA_TYPES = tuple(dict.fromkeys(_FILES["image"].values()))
VIDEO_TYPES = (*_FILES["video"].values(), FRAMES)
# As some clients write them.
_OTHER_NAMES = {"image/jpg": "image/jpeg"}
_HEAD = re.compile(r"data:([^;,\s]{0,64})((?:;[^;,]{0,64}){0,4}),", re.IGNORECASE)
_LONGEST_HEAD = 512


class PictureError(ValueError):
    """A picture that cannot be taken; the message says why, and what can be."""


def is_fetched(url: str) -> bool:
    """Whether a URL is an address of a server."""
    return url[:8].lower().startswith(("http://", "https://"))


def is_of_frames(url: str) -> bool:
    """Whether a URL has the frames of a video as pictures."""
    return url[: len(FRAMES) + 5].lower() == f"data:{FRAMES}"


def data_of(url: str, media_types: Sequence[str] = MEDIA_TYPES) -> str:
    """The base64 of a ``data:`` URL of a picture, or of a file of one of these types.

    Raises:
        PictureError: it is no such URL, or of something else than a picture that can be read here.
    """
    found = _HEAD.match(url[:_LONGEST_HEAD])
    if found is None:
        raise PictureError(f"it is {_kind_of(url)}; send the file itself, as a URL data:{media_types[0]};base64,...")
    media_type, more = found[1].lower(), found[2].lower()
    if _OTHER_NAMES.get(media_type, media_type) not in media_types:
        raise PictureError(f"it is of type {media_type or 'text/plain'!r}; allowed are {', '.join(media_types)}")
    if not more.endswith(";base64"):
        raise PictureError(f"its data is not marked as base64; send data:{media_types[0]};base64,...")
    return url[found.end() :]


def url_of_file(path: Path, kind: str) -> str:
    """The ``data:`` URL of a file that is an "image" or a "video".

    Raises:
        PictureError: it is none, as its name says.
        OSError: it cannot be read.
    """
    types = _FILES[kind]
    media_type = types.get(path.suffix.lower())
    if media_type is None:
        raise PictureError(f"{path} is no {kind} by its name; allowed are names with {', '.join(types)}")
    return f"data:{media_type};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _kind_of(url: str) -> str:
    scheme, colon, _ = url[:32].partition(":")
    if scheme.lower() in ("http", "https"):
        return (
            f"an address of {scheme.lower()}, and nothing is fetched by this server (--allowed-media-domains names "
            "servers from which it may)"
        )
    return f"a URL of {scheme[:16]!r}" if colon else "no URL"
