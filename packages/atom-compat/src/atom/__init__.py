"""What ROCm/ATOM's package `atom` has, over this project's packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom.model_engine.arg_utils import EngineArgs
    from atom.sampling_params import SamplingParams
    from atom_core import LLMEngine

__all__ = ["EngineArgs", "LLMEngine", "SamplingParams"]

__getattr__ = lazy_names(__name__)
