"""A decoder of videos: ``python -m atom_server.pictures.video_process LIMITS``, started by `PictureDecoder`."""

from __future__ import annotations

import os
import sys

from atom_core.limited_process.answering import answer_questions
from atom_core.limited_process.limits import Limits
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoding import prepare
from atom_server.pictures.messages import ENCODER, QUESTION, Answer
from atom_server.pictures.video_decoding import decode_video


def main(limits: Limits) -> None:
    """Decode videos until there are no more."""
    os.nice(10)  # streams of others go first
    prepare()
    answer_questions(_answer, limits)


def _answer(question: bytes) -> bytes:
    try:
        return ENCODER.encode(decode_video(QUESTION.decode(question)))
    except PictureError as error:
        return ENCODER.encode(Answer(error=str(error)))


if __name__ == "__main__":
    main(Limits.from_command_line(sys.argv[1]))
