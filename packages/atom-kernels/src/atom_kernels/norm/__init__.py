"""Normalization over the last dimension: RMS norm, residual add + RMS norm, layer norm."""

from atom_kernels.norm.contract import LayerNormProblem, RMSNormProblem, add_rms_norm, layer_norm, rms_norm
from atom_kernels.norm.ops import ADD_RMS_NORM, LAYER_NORM, OPS, RMS_NORM

__all__ = [
    "ADD_RMS_NORM",
    "LAYER_NORM",
    "OPS",
    "RMS_NORM",
    "LayerNormProblem",
    "RMSNormProblem",
    "add_rms_norm",
    "layer_norm",
    "rms_norm",
]
