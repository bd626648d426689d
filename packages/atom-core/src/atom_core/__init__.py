"""The engine: requests, scheduling, the paged cache, sampling, workers, `LLMEngine` and `AsyncEngine`.

Names are imported when first used, so that front ends stay free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_core.config import EngineArgs, EngineConfig
    from atom_core.engine import AsyncEngine, EngineInfo, LLMEngine
    from atom_core.errors import (
        EngineAsleepError,
        EngineBusyError,
        EngineDeadError,
        EngineStartError,
        InvalidRequestError,
        ProfilerError,
    )
    from atom_core.messages import (
        STEP_SIZES,
        CompletionLogprobs,
        EngineRequest,
        OffloadStats,
        RequestOutput,
        SamplingParams,
        StepStats,
        StructuredOutputParams,
        ThinkingBudget,
    )
    from atom_core.tokenization import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "STEP_SIZES",
    "AsyncEngine",
    "CompletionLogprobs",
    "EngineArgs",
    "EngineAsleepError",
    "EngineBusyError",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineRequest",
    "EngineStartError",
    "InvalidRequestError",
    "LLMEngine",
    "OffloadStats",
    "ProfilerError",
    "RequestOutput",
    "SamplingParams",
    "StepStats",
    "StructuredOutputParams",
    "ThinkingBudget",
    "Tokenizer",
]

__getattr__ = lazy_names(__name__)
