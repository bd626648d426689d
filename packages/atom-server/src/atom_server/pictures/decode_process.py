"""A decoder: ``python -m atom_server.pictures.decode_process LIMITS``, started by `PictureDecoder`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from atom_core.garbage import kept_for_good
from atom_core.limited_process.answering import answer_questions
from atom_core.limited_process.limits import Limits
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoding import decode, prepare
from atom_server.pictures.messages import ENCODER, QUESTION, Answer, Question

Decode = Callable[[Question], Answer]
"""Raises a PictureError where it gives no picture, and no video."""


def main(make: Callable[[], Decode], limits: Limits) -> None:
    """Decode pictures, or videos, by what `make` gives, until there are no more."""

    def answer(question: bytes) -> bytes:
        try:
            return ENCODER.encode(decode(QUESTION.decode(question)))
        except PictureError as error:
            return ENCODER.encode(Answer(error=str(error)))

    os.nice(10)  # streams of others go first
    with kept_for_good():
        prepare()  # what is imported and made once counts for nobody
        decode = make()
    answer_questions(answer, limits)


if __name__ == "__main__":
    main(lambda: decode, Limits.from_command_line(sys.argv[1]))
