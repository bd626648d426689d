"""How llama.cpp's converter writes each architecture: its header as a config, its tensors under the model's names."""

from atom_models.checkpoint.gguf_architectures.architecture import GGUFArchitecture
from atom_models.checkpoint.gguf_architectures.registry import find_gguf_architecture, gguf_architectures

__all__ = ["GGUFArchitecture", "find_gguf_architecture", "gguf_architectures"]
