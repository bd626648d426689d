"""Scores of models that make vectors and nothing else: the cosine of the two texts' vectors, from -1 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.requests import Request

from atom_core.engine.inputs.checked_prompts import beside_the_loop
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation
from atom_server.prompts.texts import PromptTokens, encode_texts
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.labels import PARAMS
from atom_server.state import server_state


async def score_by_vectors(request: Request, body: PairsRequest) -> tuple[Generation, list[float]]:
    """Each text is embedded once, however often it stands in pairs."""
    pairs, param = body.pairs(), body.name_of("prompt") or "prompt"
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    state = server_state(request)
    model = state.engine.embedding_model
    pooling, before = model.choose_pooling(None), model.prompt(None, state.task_of(body.model))
    given = [before + text for text in texts]
    encoded = await encode_texts(request, given, add_special_tokens=True, param=param)
    prompts = [PromptTokens(token_ids) for token_ids in encoded]
    generation = await Generation.submit(request, body, prompts, PARAMS, kind="score", pooling=pooling)
    choices = await until_disconnect(request, collect(request, generation))
    vectors = {text: choice.embedding for text, choice in zip(texts, choices, strict=True)}

    def compare() -> list[float]:
        return [_cosine(vectors[first], vectors[second]) for first, second in pairs]

    num_numbers = len(pairs) * len(choices[0].embedding or ())
    return generation, await beside_the_loop(compare, num_tokens=num_numbers)


def _cosine(first: Sequence[float] | None, second: Sequence[float] | None) -> float:
    if first is None or second is None:
        raise APIError(500, "the engine gave no vector for a text")
    product = sum(a * b for a, b in zip(first, second, strict=True))
    lengths = math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))
    return product / lengths if lengths else 0.0
