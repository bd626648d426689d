"""From files to layers: safetensors and GGUF, with exact accounting."""

from atom_models.weights.dequantize import dequantize
from atom_models.weights.loader import load_dummy_weights, load_named_weights, load_weights

__all__ = ["dequantize", "load_dummy_weights", "load_named_weights", "load_weights"]
