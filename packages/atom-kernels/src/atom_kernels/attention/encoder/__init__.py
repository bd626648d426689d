"""Attention of encoders: every token of a text sees those before it and those behind it; nothing is cached."""

from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
from atom_kernels.attention.encoder.reference import encoder_attention

__all__ = ["EncoderAttentionProblem", "encoder_attention"]
