"""The fields of every request that reaches the engine, and of those with prompts that may be cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from atom_core.engine.inputs.validation import MAX_PRIORITY
from atom_server.schemas.fields.strict_model import OpenModel, RequestOfModel

MAX_INTEGER = 2**31 - 1

Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first.")]
CacheSalt = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.\-]{1,64}$",
        description="Prompts share cached prefixes only within one salt.",
        validate_default=False,
    ),
]


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("must be at least 1, or -1 for what fits")
    return value


def at_most(most: int) -> BeforeValidator:
    """Refuse an object of more than `most` fields. Pydantic counts them only after it has checked each of them."""

    def count(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"must have at most {most} fields, not {len(value)}")
        return value

    return BeforeValidator(count)


PromptLength = Annotated[
    int,
    Field(ge=-1, le=MAX_INTEGER),
    AfterValidator(_not_zero),
    WithJsonSchema({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER}]}),
]


class ModelRequest(RequestOfModel, OpenModel):
    """What every request may say. Types are strict; a field given as null counts as left out.

    `engine_names` gives the names that the engine's parameters go by in this request, where they differ.
    """

    engine_names: ClassVar[Mapping[str, str]] = {}

    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")] | None = Field(
        None, description="What the answer's id ends with; left out, a random one."
    )
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    user: str | None = Field(None, max_length=1024, description="Ignored.")

    @property
    def num_prompts(self) -> int:
        """How many prompts it has for the engine."""
        return 1

    @property
    def num_samples_each(self) -> int:
        """Samples that it asks for of each prompt."""
        return 1

    def name_of(self, parameter: str | None) -> str | None:
        """What this request calls a parameter of the engine."""
        return self.engine_names.get(parameter or "", parameter)


class PromptRequest(ModelRequest):
    """A request whose prompts are tokenized here, and cut where it says so."""

    add_special_tokens: bool | None = Field(
        None, description="Begin as the tokenizer does. Left out: true, and false where a chat template does it."
    )
    truncate_prompt_tokens: PromptLength | None = Field(
        None, description="Cut longer prompts to this many tokens; -1 to what fits beside max_tokens."
    )
    truncation_side: Literal["left", "right"] = Field("left", description="Where tokens are dropped.")

    def cut(self, token_ids: list[int], max_model_len: int, max_tokens: int | None) -> list[int]:
        """The tokens of a prompt that are kept."""
        most = self.truncate_prompt_tokens
        if most is None:
            return token_ids
        if most < 0:
            most = max(1, max_model_len - (max_tokens or 1))
        if len(token_ids) <= most:
            return token_ids
        return token_ids[-most:] if self.truncation_side == "left" else token_ids[:most]


def as_list(value: Any) -> Any:
    """A string as a list of one."""
    return [value] if isinstance(value, str) else value
