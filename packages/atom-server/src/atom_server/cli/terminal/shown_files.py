"""The flags of commands that show a model pictures and videos, and the parts of a chat that their files become."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from atom_core.config import ConfigError
from atom_core.config.options import add_options, options_of
from atom_server.options import ServerOptions
from atom_server.pictures.data_url import PictureError, url_of_file
from atom_server.schemas.fields.content import Part, image_part, video_part

KINDS: Mapping[str, Callable[[str], Part]] = {"image": image_part, "video": video_part}
"""What a flag or a command of the terminal is called -> what makes a part of a URL."""
_OPTIONS = ("image_processor",)
_OTHERS = tuple(entry.name for entry in options_of(ServerOptions) if entry.name not in _OPTIONS)


def add_shown_args(parser: argparse.ArgumentParser, where: str) -> None:
    """Give `parser` the flags --image and --video, and the server's about them; `where` ends the help of the first."""
    for kind, what in (("image", "a picture"), ("video", "a video")):
        help = f"{what} {where}; may be repeated"
        parser.add_argument(f"--{kind}", type=Path, action="append", default=[], metavar="FILE", help=help)
    add_options(parser, ServerOptions, leave_out=_OTHERS)


def picture_options(args: argparse.Namespace) -> ServerOptions:
    """What the server's flags about pictures say; all else is as it is by default."""
    given = {name: getattr(args, name) for name in _OPTIONS}
    return ServerOptions(**{name: value for name, value in given.items() if value is not None})


def shown_parts(args: argparse.Namespace) -> list[Part]:
    """What the flags name, pictures before videos.

    Raises:
        ConfigError: a file cannot be read, or is of another kind by its name.
    """
    return [_part_of_flag(kind, file) for kind in KINDS for file in getattr(args, kind)]


def part_of_file(kind: str, file: Path) -> Part:
    """The part of a chat that shows a file; `kind` is one of `KINDS`.

    Raises:
        PictureError: it is of another kind, as its name says.
        OSError: it cannot be read.
    """
    return KINDS[kind](url_of_file(file, kind))


def _part_of_flag(kind: str, file: Path) -> Part:
    try:
        return part_of_file(kind, file)
    except (OSError, PictureError) as error:
        raise ConfigError(f"--{kind}: {error}") from None
