"""Engines: the core loop, the inline `LLMEngine`, the asyncio `AsyncEngine`. Lazily imported: torch stays out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_core.engine.async_engine import AsyncEngine
    from atom_core.engine.errors import EngineDeadError, EngineStartError, InvalidRequestError, ProfilerError
    from atom_core.engine.info import EngineInfo
    from atom_core.engine.llm_engine import LLMEngine

_HOMES = {
    "AsyncEngine": "async_engine",
    "EngineDeadError": "errors",
    "EngineInfo": "info",
    "EngineStartError": "errors",
    "InvalidRequestError": "errors",
    "LLMEngine": "llm_engine",
    "ProfilerError": "errors",
}

__all__ = [
    "AsyncEngine",
    "EngineDeadError",
    "EngineInfo",
    "EngineStartError",
    "InvalidRequestError",
    "LLMEngine",
    "ProfilerError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
