"""``response_format`` and ``structured_outputs``: what the text must follow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from atom_core import StructuredOutputParams
from atom_core.structured_output.constraints.grammar import MAX_BYTES, MAX_CHOICES
from atom_server.schemas.fields.strict_model import OpenModel, StrictModel


class JsonSchemaFormat(StrictModel):
    """A named schema. It is always enforced, `strict` or not; without a schema any JSON object will do."""

    name: str = Field("", max_length=256)
    description: str | None = Field(None, max_length=65_536)
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(OpenModel):
    """The shape of the answer."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = Field(None, description="For type json_schema.")

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type 'json_schema' needs a field 'json_schema' that holds the schema")
        return self

    def constraint(self) -> StructuredOutputParams | None:
        """For the engine; None for plain text."""
        if self.type == "structural_tag":
            return StructuredOutputParams(structural_tag=dict(self.model_extra or {}))
        if self.type == "json_schema" and self.json_schema is not None and self.json_schema.schema_ is not None:
            return StructuredOutputParams(json=self.json_schema.schema_)
        return None if self.type == "text" else StructuredOutputParams(json_object=True)


def _exactly_one(schema: dict[str, Any]) -> None:
    """Say in the JSON schema what `StructuredOutputs` checks: one property, which is neither null nor false."""
    for field in schema["properties"].values():
        forms = [{"const": True} if form == {"type": "boolean"} else form for form in field["anyOf"]]
        field["anyOf"] = [form for form in forms if form.get("type") != "null"]
        field.pop("default", None)
    schema |= {"minProperties": 1, "maxProperties": 1}


class StructuredOutputs(BaseModel):
    """Exactly one constraint on the text."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True, json_schema_extra=_exactly_one)

    json_: dict[str, Any] | bool | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: Annotated[str, Field(min_length=1, max_length=MAX_BYTES)] | None = None
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)
        ]
        | None
    ) = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_BYTES)] | None = Field(None, description="GBNF or Lark.")
    structural_tag: dict[str, Any] | str | None = None

    @model_validator(mode="after")
    def _is_one_constraint(self) -> StructuredOutputs:
        given = [name for name, value in self._values().items() if value not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of {', '.join(self._values())}; it has {len(given)}")
        return self

    def constraint(self) -> StructuredOutputParams:
        """For the engine."""
        return StructuredOutputParams(**self._values())

    def _values(self) -> dict[str, Any]:
        """Every constraint by its name, which is that of the engine's parameter too; None where it is not given."""
        return {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
