"""Multi-head latent attention over a paged cache of latents: contract, reference, and what runs it here."""

from atom_kernels.attention.mla.plan import MlaPlan, select_mla
from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.attention.mla.reference import latent_attention

__all__ = ["MlaPlan", "MlaProblem", "MlaPrologue", "apply_mla_prologue", "latent_attention", "select_mla"]
