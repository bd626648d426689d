"""`KVTransfer`: says that one server computes a prompt and another goes on from it, as vLLM's proxies pass it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from atom_core.messages import KVTransferParams
from atom_server.schemas.fields.strict_model import StrictModel

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]


class KVTransfer(StrictModel):
    """Pass on what the server that computed the prompt has answered, and change nothing."""

    model_config = ConfigDict(extra="forbid")

    do_remote_decode: bool = Field(False, description="Keep the blocks of the prompt for another server.")
    do_remote_prefill: bool = Field(False, description="Fetch the blocks of the prompt from another server.")
    remote_engine_id: _Name | None = None
    remote_request_id: _Name | None = None
    remote_host: _Name | None = None
    remote_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    remote_num_tokens: _Count = 0
    remote_num_followed_tokens: _Count = 0
    remote_block_ids: Annotated[list[_Count], Field(fail_fast=True, max_length=65536)] | None = Field(
        None, description="Ignored."
    )
    tp_size: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Ignored.")

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, given: Any) -> Any:
        """One error for all fields that there are not, however many."""
        names = given if isinstance(given, dict) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            raise ValueError(f"{str(unknown)[:60]!r} is none of its fields, which are {', '.join(cls.model_fields)}")
        return given

    def params(self) -> KVTransferParams:
        """The same for the engine."""
        return KVTransferParams(**self.model_dump())
