"""Engines: the core loop, the inline `LLMEngine`, the asyncio `AsyncEngine`. Lazily imported: torch stays out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_core.engine.async_engine import AsyncEngine
    from atom_core.engine.info import EngineInfo
    from atom_core.engine.llm_engine import LLMEngine

__all__ = ["AsyncEngine", "EngineInfo", "LLMEngine"]

__getattr__ = lazy_names(__name__)
