"""Quantization schemes of linears, and their choice by layer name."""

from atom_models.quantization.choice import (
    ONLINE,
    UNQUANTIZED,
    OneScheme,
    UnsupportedQuantizationError,
    choose_quantization,
)
from atom_models.quantization.dense import Dense
from atom_models.quantization.int8 import Int8Checkpoint, Int8FewRows, Int8WeightOnly
from atom_models.quantization.scheme import (
    DENSE_INPUT,
    UNNORMED,
    InputFormat,
    LinearScheme,
    LinearSpec,
    Quantization,
    Unnormed,
    WeightSlot,
)

__all__ = [
    "DENSE_INPUT",
    "ONLINE",
    "UNNORMED",
    "UNQUANTIZED",
    "Dense",
    "InputFormat",
    "Int8Checkpoint",
    "Int8FewRows",
    "Int8WeightOnly",
    "LinearScheme",
    "LinearSpec",
    "OneScheme",
    "Quantization",
    "Unnormed",
    "UnsupportedQuantizationError",
    "WeightSlot",
    "choose_quantization",
]
