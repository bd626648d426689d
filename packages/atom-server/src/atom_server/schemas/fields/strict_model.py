"""What the schemas of requests have in common: no value is taken for one of another type."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """Drops fields that it does not know."""

    model_config = ConfigDict(strict=True)


class OpenModel(StrictModel):
    """Keeps fields that it does not know."""

    model_config = ConfigDict(extra="allow")


class RequestOfModel(StrictModel):
    """A request to the model that is served."""

    model: str | None = Field(None, max_length=1024, description="A served name; any request may leave it out.")
