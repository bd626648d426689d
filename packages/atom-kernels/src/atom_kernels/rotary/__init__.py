"""Rotary position embedding: the tables of every published scaling, and the rotation of queries and keys."""

from atom_kernels.rotary.contract import RotaryProblem, apply_rotary, axes_of_frequencies
from atom_kernels.rotary.ops import OP, OPS
from atom_kernels.rotary.tables import RopeConfig, rope_cos_sin, rope_frequencies

__all__ = [
    "OP",
    "OPS",
    "RopeConfig",
    "RotaryProblem",
    "apply_rotary",
    "axes_of_frequencies",
    "rope_cos_sin",
    "rope_frequencies",
]
