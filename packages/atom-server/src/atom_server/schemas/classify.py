"""The body of ``POST /classify``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from atom_server.schemas.completions import Prompts
from atom_server.schemas.fields.model_request import PromptRequest


class ClassifyRequest(PromptRequest):
    """Texts to tell the labels of."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "input"}

    input: Prompts = Field(description="A string, a list of token ids, or a list of either.")

    @property
    def num_prompts(self) -> int:
        return len(self.input)
