"""The engine: requests, scheduling, the paged cache, sampling, workers, `LLMEngine` and `AsyncEngine`.

Names are imported when first used, so that front ends stay free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_core.config import EngineArgs, EngineConfig
    from atom_core.engine import (
        AsyncEngine,
        EngineDeadError,
        EngineInfo,
        EngineStartError,
        InvalidRequestError,
        LLMEngine,
        ProfilerError,
    )
    from atom_core.messages import (
        CompletionLogprobs,
        EngineRequest,
        RequestOutput,
        SamplingParams,
        StepStats,
        StructuredOutputParams,
        ThinkingBudget,
    )
    from atom_core.tokenization import Tokenizer

__version__ = "0.1.0"

_HOMES = {
    "AsyncEngine": "engine",
    "CompletionLogprobs": "messages",
    "EngineArgs": "config",
    "EngineConfig": "config",
    "EngineDeadError": "engine",
    "EngineInfo": "engine",
    "EngineRequest": "messages",
    "EngineStartError": "engine",
    "InvalidRequestError": "engine",
    "LLMEngine": "engine",
    "ProfilerError": "engine",
    "RequestOutput": "messages",
    "SamplingParams": "messages",
    "StepStats": "messages",
    "StructuredOutputParams": "messages",
    "ThinkingBudget": "messages",
    "Tokenizer": "tokenization",
}

__all__ = [
    "AsyncEngine",
    "CompletionLogprobs",
    "EngineArgs",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineRequest",
    "EngineStartError",
    "InvalidRequestError",
    "LLMEngine",
    "ProfilerError",
    "RequestOutput",
    "SamplingParams",
    "StepStats",
    "StructuredOutputParams",
    "ThinkingBudget",
    "Tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
