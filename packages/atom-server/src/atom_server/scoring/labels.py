"""Scores by the head of a reranker, which has one label."""

from __future__ import annotations

from starlette.requests import Request

from atom_core import SamplingParams
from atom_core.engine.judging import Labels
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import Collected, collect
from atom_server.generation.generation import Generation
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.layout import lay_out
from atom_server.state import ServerState, server_state

# Nothing is generated; the parameters are only checked.
PARAMS = SamplingParams(max_tokens=0)


async def score_by_label(request: Request, body: PairsRequest) -> tuple[Generation, list[float]]:
    """What the head says of each pair."""
    labels = labels_of(server_state(request))
    if len(labels.names) > 1:
        names = ", ".join(labels.names[:8])
        message = f"this model is no reranker: it tells {len(labels.names)} labels ({names}): POST /classify"
        raise APIError(400, message, param="model", code="unsupported_model")
    prompts = await lay_out(request, body)
    generation = await Generation.submit(request, body, prompts, PARAMS, kind="score", pooling=labels.pooling)
    choices = await until_disconnect(request, collect(request, generation))
    return generation, [probabilities_of(labels, choice)[0] for choice in choices]


def labels_of(state: ServerState) -> Labels:
    """The labels of the server's model; APIError 400 where it has none."""
    labels = state.engine.judging.labels
    if labels is None:
        message = f"{state.engine.info.architecture} has no head of labels: serve a model for sequence classification"
        raise APIError(400, message, param="model", code="unsupported_model")
    return labels


def probabilities_of(labels: Labels, choice: Collected) -> list[float]:
    """What a prompt's scores come to; APIError 500 where there are none."""
    if choice.embedding is None:
        raise APIError(500, "the engine gave no scores for a prompt")
    return labels.probabilities(choice.embedding)
