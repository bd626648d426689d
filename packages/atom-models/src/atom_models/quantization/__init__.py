"""How layers hold their weights, and how checkpoints store them; the choice for each layer by its name."""

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.choice import AS_STORED, ONLINE, ROUNDED_TO, UNQUANTIZED, OneFormat, choose_quantization
from atom_models.quantization.gguf_quantization import GGUFQuantization
from atom_models.quantization.layer_quantization import HeldFormat, LayerQuantization, Quantization
from atom_models.quantization.layouts import ExpectedWeight, StoredLayout
from atom_models.quantization.packing import EXPERTS, LINEARS, why_never_packed
from atom_models.quantization.published import Header, Headers, read_published

__all__ = [
    "AS_STORED",
    "EXPERTS",
    "LINEARS",
    "ONLINE",
    "ROUNDED_TO",
    "UNQUANTIZED",
    "ExpectedWeight",
    "GGUFQuantization",
    "Header",
    "Headers",
    "HeldFormat",
    "LayerQuantization",
    "OneFormat",
    "Quantization",
    "StoredLayout",
    "UnsupportedQuantizationError",
    "choose_quantization",
    "read_published",
    "why_never_packed",
]
