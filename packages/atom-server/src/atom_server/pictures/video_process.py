"""A decoder of videos: ``python -m atom_server.pictures.video_process LIMITS``, started by `PictureDecoder`."""

from __future__ import annotations

import sys

from atom_core.limited_process.limits import Limits
from atom_server.pictures.decode_process import main
from atom_server.pictures.video_decoding import decode_video

if __name__ == "__main__":
    main(lambda: decode_video, Limits.from_command_line(sys.argv[1]))
