"""The bodies of ``POST /v1/load_lora_adapter`` and ``POST /v1/unload_lora_adapter``, in vLLM's spelling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atom_server.schemas.fields.strict_model import RequestOfModel

AdapterName = Annotated[str, Field(min_length=1, max_length=128)]


class LoadAdapterRequest(RequestOfModel):
    """An adapter to load."""

    lora_name: AdapterName = Field(description="What requests are to call it.")
    lora_path: str = Field(
        min_length=1, max_length=4096, description="Its folder on the server's machine, as PEFT saved it."
    )


class UnloadAdapterRequest(RequestOfModel):
    """An adapter that no further request is to have."""

    lora_name: AdapterName
