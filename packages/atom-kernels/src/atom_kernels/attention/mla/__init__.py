"""Multi-head latent attention over a paged cache of latents: contract and reference."""

from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.attention.mla.reference import latent_attention

__all__ = ["MlaProblem", "MlaPrologue", "apply_mla_prologue", "latent_attention"]
