"""A decoder by the checkpoint's own processor: ``python -m atom_server.pictures.checkpoint_process LIMITS FOLDER``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from atom_core.limited_process.limits import Limits
from atom_server.pictures.checkpoint_processor import CheckpointProcessor
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decode_process import Decode, main
from atom_server.pictures.decoding import decode
from atom_server.pictures.messages import Answer, Question


def decode_by(folder: Path) -> Decode:
    """Decodes by the processor of a checkpoint; where that cannot run, every answer says why."""
    try:
        return partial(decode, fit=CheckpointProcessor(folder).image)
    except PictureError as error:
        reason = str(error)

    def refuse(question: Question) -> Answer:
        raise PictureError(reason)

    return refuse


if __name__ == "__main__":
    main(partial(decode_by, Path(sys.argv[2])), Limits.from_command_line(sys.argv[1]))
