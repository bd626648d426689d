"""From files to layers: safetensors and GGUF, with exact accounting."""

from atom_models.weights.dequantize import dequantize
from atom_models.weights.filling import check_headers, choose_names
from atom_models.weights.loader import load_dummy_weights, load_named_weights, load_weights

__all__ = ["check_headers", "choose_names", "dequantize", "load_dummy_weights", "load_named_weights", "load_weights"]
