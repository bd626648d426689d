"""How layers hold their weights, and how checkpoints store them; the choice for each layer by its name."""

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.choice import ONLINE, ROUNDED_TO, UNQUANTIZED, OneScheme, choose_quantization
from atom_models.quantization.dense import Dense
from atom_models.quantization.int8 import Int8FewRows
from atom_models.quantization.layouts import ExpectedWeight, StoredLayout
from atom_models.quantization.packed import AsStored, Packed, why_never_packed
from atom_models.quantization.published import Header, Headers, read_published
from atom_models.quantization.scheme import (
    DENSE_INPUT,
    InputFormat,
    LayerQuantization,
    LinearScheme,
    LinearSpec,
    Quantization,
    Unnormed,
    UnnormedInput,
)

__all__ = [
    "DENSE_INPUT",
    "ONLINE",
    "ROUNDED_TO",
    "UNQUANTIZED",
    "AsStored",
    "Dense",
    "ExpectedWeight",
    "Header",
    "Headers",
    "InputFormat",
    "Int8FewRows",
    "LayerQuantization",
    "LinearScheme",
    "LinearSpec",
    "OneScheme",
    "Packed",
    "Quantization",
    "StoredLayout",
    "Unnormed",
    "UnnormedInput",
    "UnsupportedQuantizationError",
    "choose_quantization",
    "read_published",
    "why_never_packed",
]
