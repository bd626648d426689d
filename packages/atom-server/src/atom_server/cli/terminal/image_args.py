"""The flag of commands that show a model pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from atom_core.config import ConfigError
from atom_server.pictures.data_url import PictureError, url_of_file


def add_image_arg(parser: argparse.ArgumentParser, help: str) -> None:
    """Give `parser` the flag --image."""
    parser.add_argument("--image", type=Path, action="append", default=[], metavar="FILE", help=help)


def urls_of_files(files: Sequence[Path]) -> list[str]:
    """The pictures as ``data:`` URLs.

    Raises:
        ConfigError: a file cannot be read, or is no picture by its name.
    """
    try:
        return [url_of_file(file) for file in files]
    except (OSError, PictureError) as error:
        raise ConfigError(f"--image: {error}") from None
