"""Architectures of GGUF files by the name that their headers give."""

from __future__ import annotations

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_architectures.architecture import GGUFArchitecture
from atom_models.checkpoint.gguf_architectures.deepseek2 import DEEPSEEK2
from atom_models.checkpoint.gguf_architectures.fine_grained_moe import GLM4MOE
from atom_models.checkpoint.gguf_architectures.gemma3 import GEMMA3
from atom_models.checkpoint.gguf_architectures.gpt_oss import GPT_OSS
from atom_models.checkpoint.gguf_architectures.llama import LLAMA
from atom_models.checkpoint.gguf_architectures.minimax_m2 import MINIMAX_M2
from atom_models.checkpoint.gguf_architectures.qwen import QWEN2, QWEN3, QWEN3MOE
from atom_models.checkpoint.gguf_file import GGUFFile

_ARCHITECTURES = {
    "deepseek2": DEEPSEEK2,
    "gemma3": GEMMA3,
    "glm4moe": GLM4MOE,
    "gpt-oss": GPT_OSS,
    "llama": LLAMA,
    "minimax-m2": MINIMAX_M2,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3MOE,
}


def gguf_architectures() -> tuple[str, ...]:
    """Values of `general.architecture` that can be loaded."""
    return tuple(_ARCHITECTURES)


def find_gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The table for a file.

    Raises:
        CheckpointError: there is none for its architecture."""
    name = file.metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: GGUF files of architecture {name!r} cannot be loaded; "
            f"supported: {', '.join(_ARCHITECTURES)}. Use the model's safetensors checkpoint instead"
        )
    return _ARCHITECTURES[name]
