"""Normalization over the last dimension: RMS norm, gated or after a residual's addition too, and layer norm."""

from atom_kernels.norm.contract import (
    GatedRMSNormProblem,
    LayerNormProblem,
    RMSNormProblem,
    add_rms_norm,
    gated_rms_norm,
    layer_norm,
    rms_norm,
)
from atom_kernels.norm.gated import GATED_RMS_NORM
from atom_kernels.norm.ops import ADD_RMS_NORM, LAYER_NORM, OPS, RMS_NORM
from atom_kernels.norm.rounded import ROUNDED_ADD_RMS_NORM, ROUNDED_RMS_NORM, RoundedNormProblem

__all__ = [
    "ADD_RMS_NORM",
    "GATED_RMS_NORM",
    "LAYER_NORM",
    "OPS",
    "RMS_NORM",
    "ROUNDED_ADD_RMS_NORM",
    "ROUNDED_RMS_NORM",
    "GatedRMSNormProblem",
    "LayerNormProblem",
    "RMSNormProblem",
    "RoundedNormProblem",
    "add_rms_norm",
    "gated_rms_norm",
    "layer_norm",
    "rms_norm",
]
