"""Which way a model has of scoring pairs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request

from atom_core.engine.judging import Way
from atom_server.errors import APIError
from atom_server.generation.generation import Generation, check_room
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.labels import score_by_label
from atom_server.scoring.likelihood import score_by_likelihood
from atom_server.scoring.vectors import score_by_vectors
from atom_server.scoring.words import score_by_words
from atom_server.state import server_state

Score = Callable[[Request, PairsRequest], Awaitable[tuple[Generation, list[float]]]]

_WAYS: Mapping[Way, Score] = {
    "labels": score_by_label,
    "words": score_by_words,
    "vectors": score_by_vectors,
    "likelihood": score_by_likelihood,
}


async def score_pairs(request: Request, body: PairsRequest) -> tuple[Generation, list[float]]:
    """The score of each pair, the higher the better, and what was run for them.

    Raises:
        APIError, InvalidRequestError: 400; a text that does not fit, or what this model cannot be asked.
    """
    judging = server_state(request).engine.judging
    if body.instruction is not None and not judging.has_template:
        message = "this model is given no instruction beside query and document: leave 'instruction' out"
        raise APIError(400, message, param="instruction", code="unsupported_parameter")
    check_room(request, body)
    return await _WAYS[judging.way](request, body)
