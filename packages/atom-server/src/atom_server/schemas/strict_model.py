"""What the schemas of requests have in common: no value is taken for one of another type."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Drops fields that it does not know."""

    model_config = ConfigDict(strict=True)


class OpenModel(StrictModel):
    """Keeps fields that it does not know."""

    model_config = ConfigDict(extra="allow")
