"""Quantization schemes of linears, and their choice by layer name."""

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.choice import ONLINE, UNQUANTIZED, OneScheme, choose_quantization
from atom_models.quantization.dense import Dense
from atom_models.quantization.int8 import Int8Checkpoint, Int8FewRows, Int8WeightOnly
from atom_models.quantization.scheme import (
    DENSE_INPUT,
    InputFormat,
    LinearScheme,
    LinearSpec,
    Quantization,
    Unnormed,
    UnnormedInput,
    WeightSlot,
)

__all__ = [
    "DENSE_INPUT",
    "ONLINE",
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
    "UnnormedInput",
    "UnsupportedQuantizationError",
    "WeightSlot",
    "choose_quantization",
]
