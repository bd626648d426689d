"""The bodies of ``POST /v1/score`` and ``POST /v1/rerank``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, Field

from atom_server.errors import APIError
from atom_server.schemas.fields.model_request import MAX_INTEGER, ModelRequest, as_list

MAX_TEXTS = 2048

Text = Annotated[str, Field(min_length=1)]


class TextObject(BaseModel):
    """A document with other fields beside its text."""

    text: Text


def _document(value: Any) -> Any:
    """Documents may be objects with a text."""
    return value["text"] if isinstance(value, dict) and isinstance(value.get("text"), str) else value


_TextList = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
Texts = Annotated[_TextList, BeforeValidator(as_list, json_schema_input_type=Text | _TextList)]
Document = Annotated[Text, BeforeValidator(_document, json_schema_input_type=Text | TextObject)]


class PairsRequest(ModelRequest):
    """Queries and documents.

    Attributes:
        judged: the field whose texts a model that is no reranker judges behind the others.
    """

    judged: ClassVar[str]

    instruction: Text | None = Field(
        None, description="What is asked of documents; for rerankers that are told so, such as Qwen3-Reranker."
    )

    def pairs(self) -> list[tuple[str, str]]:
        """Each query with its document."""
        raise NotImplementedError

    def texts_in_order(self) -> list[tuple[str, str]]:
        """Each text with the one that is judged behind it."""
        return self.pairs()


class ScoreRequest(PairsRequest):
    """Pairs of texts: one with each of a list, or two lists of one length, pair by pair."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "text_2"}
    judged: ClassVar[str] = "text_2"

    text_1: Texts = Field(description="What comes first: a string, or a list of strings.")
    text_2: Texts = Field(description="What is judged after it: a string, or a list of strings.")

    @property
    def num_prompts(self) -> int:
        return len(self.text_2)

    def pairs(self) -> list[tuple[str, str]]:
        """Every pair, in order; APIError 400 where the lists do not pair up."""
        if len(self.text_1) not in (1, len(self.text_2)):
            message = f"'text_1' must be one text, or as many as 'text_2' has: {len(self.text_2)}"
            raise APIError(400, message, param="text_1")
        firsts = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        return list(zip(firsts, self.text_2, strict=True))


class RerankRequest(PairsRequest):
    """Documents to put in order by how well they go with the query."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "documents"}
    judged: ClassVar[str] = "query"

    query: Text
    documents: Annotated[list[Document], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)] = Field(
        description="Strings, or objects with a string 'text'."
    )
    top_n: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None, description="How many to return; left out, all."
    )
    return_documents: bool = True

    @property
    def num_prompts(self) -> int:
        return len(self.documents)

    def pairs(self) -> list[tuple[str, str]]:
        """The query with each document."""
        return [(self.query, document) for document in self.documents]

    def texts_in_order(self) -> list[tuple[str, str]]:
        """Each document, and the query to be judged after it."""
        return [(f"{document}\n", self.query) for document in self.documents]
