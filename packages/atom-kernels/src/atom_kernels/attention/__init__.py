"""Attention over a paged cache: contract, reference, and the choice of what runs it here."""

from atom_kernels.attention.kv_write import write_kv
from atom_kernels.attention.plan import AttentionPlan, UnsupportedAttentionError, select_attention
from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.attention.reference import paged_attention

__all__ = [
    "AttentionPlan",
    "AttentionProblem",
    "AttentionPrologue",
    "UnsupportedAttentionError",
    "apply_prologue",
    "paged_attention",
    "select_attention",
    "write_kv",
]
