"""Request schemas (pydantic, strict and bounded) and response structs (msgspec)."""

from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.completions import CompletionRequest
from atom_server.schemas.tokens import DetokenizeRequest, TokenizeRequest

__all__ = ["ChatCompletionRequest", "CompletionRequest", "DetokenizeRequest", "TokenizeRequest"]
