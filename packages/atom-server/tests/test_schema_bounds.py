"""Every number and every list of a request has an upper bound, so that none can size an allocation by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.completions import CompletionRequest
from atom_server.schemas.create_response import CreateResponseRequest
from atom_server.schemas.embeddings import EmbeddingRequest
from atom_server.schemas.messages import CountTokensRequest, MessagesRequest
from atom_server.schemas.scores import RerankRequest, ScoreRequest
from atom_server.schemas.tokens import DetokenizeRequest, TokenizeRequest

SCHEMAS = [
    *(ChatCompletionRequest, CompletionRequest, CreateResponseRequest, EmbeddingRequest, MessagesRequest),
    *(CountTokensRequest, RerankRequest, ScoreRequest, DetokenizeRequest, TokenizeRequest),
]
# Lists that the limit of a body's values bounds: nothing is made for each of their items but what the client sent.
UNBOUNDED = {
    "content",  # parts of a message
    "input",  # token ids of one prompt: the context bounds them
    "prompt",
    "system",
    "output",
    "summary",
}


def unbounded(schema: Any, name: str = "") -> Iterator[str]:
    """Names of the fields under which a number or a list has no upper bound."""
    if isinstance(schema, list):
        for item in schema:
            yield from unbounded(item, name)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind in ("integer", "number") and not {"maximum", "exclusiveMaximum", "const"} & schema.keys():
        yield name
    if kind == "array" and "maxItems" not in schema:
        yield name
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            for inner, field in value.items():
                yield from unbounded(field, inner)
        elif isinstance(value, dict | list):
            yield from unbounded(value, name)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_number_and_list_is_bounded(schema: type[BaseModel]):
    assert set(unbounded(schema.model_json_schema())) <= UNBOUNDED


ODD_ITEMS = [
    None,
    True,
    -1,
    "",
    "x",
    [],
    [[]],
    {},
    {"role": 5},
    {"role": "user", "content": 5},
    {"type": "text"},
    {"type": 5},
]
ODD_VALUES = [*([item] * 2000 for item in ODD_ITEMS), {str(number): number for number in range(2000)}]


def num_errors(schema: type[BaseModel], body: dict[str, Any]) -> int:
    try:
        schema.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_a_long_value_is_checked_up_to_its_first_fault(schema: type[BaseModel]):
    """An error for each of 500,000 items held the event loop for two seconds."""
    for value in ODD_VALUES:
        turns = [{"role": "user", "content": value}]
        bodies = [*({field: value} for field in schema.model_fields), {"messages": turns}, {"input": turns}]
        for body in bodies:
            assert num_errors(schema, body) < 64, (list(body), str(value)[:80])


def test_the_search_finds_what_has_no_bound():
    class Careless(BaseModel):
        count: int
        texts: list[str]

    assert list(unbounded(Careless.model_json_schema())) == ["count", "texts"]
