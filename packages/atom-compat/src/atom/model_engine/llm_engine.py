"""`LLMEngine`, where ROCm/ATOM has it."""

from atom_core import LLMEngine

__all__ = ["LLMEngine"]
