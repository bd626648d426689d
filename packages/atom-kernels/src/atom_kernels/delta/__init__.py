"""Delta nets: the short causal convolution and the gated delta rule, with states that lie in slots."""

from atom_kernels.delta.contract import GatedDeltaProblem, ShortConvProblem, gated_delta, short_conv
from atom_kernels.delta.mixer import DeltaNetProblem
from atom_kernels.delta.ops import GATED_DELTA, OPS, SHORT_CONV

__all__ = [
    "GATED_DELTA",
    "OPS",
    "SHORT_CONV",
    "DeltaNetProblem",
    "GatedDeltaProblem",
    "ShortConvProblem",
    "gated_delta",
    "short_conv",
]
