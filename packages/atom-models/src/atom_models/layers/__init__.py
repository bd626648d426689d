"""Layers that every architecture is made of; fusion happens in their seams, not in model files."""

from atom_models.layers.activation import GatedActivation, SigmoidGate, UngatedActivation
from atom_models.layers.embedding import LMHead, VocabularyEmbedding
from atom_models.layers.layer import Layer
from atom_models.layers.linear import (
    ColumnParallelLinear,
    Linear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from atom_models.layers.loadable import Loadable
from atom_models.layers.mixers.attention import Attention
from atom_models.layers.mixers.context_mla import make_latent_attention
from atom_models.layers.mixers.delta_net import ChannelDeltaNet, DeltaNet
from atom_models.layers.mixers.encoder_attention import EncoderAttention
from atom_models.layers.mixers.index import LightningIndex
from atom_models.layers.mixers.mixer import Mixer
from atom_models.layers.mixers.mla import LatentAttention, mla_scale
from atom_models.layers.mixers.rotary import Rotary, StepAngles, axes_of_columns, make_rotary
from atom_models.layers.mixture.experts import Experts
from atom_models.layers.mixture.moe import MoE
from atom_models.layers.mixture.moe_config import MoEConfig, RoutingConfig, SharedExpertsConfig
from atom_models.layers.norms.gated_norm import GatedRMSNorm
from atom_models.layers.norms.layer_norm import LayerNorm
from atom_models.layers.norms.norm import RMSNorm
from atom_models.layers.norms.residual import Normed, Residual, Sent, Term, Unreduced, Unsummed, summed
from atom_models.layers.norms.wide_norm import WideRMSNorm
from atom_models.layers.shard import Shard
from atom_models.layers.ungated_mlp import UngatedMLP
from atom_models.quantization import ExpectedWeight

__all__ = [
    "Attention",
    "ChannelDeltaNet",
    "ColumnParallelLinear",
    "DeltaNet",
    "EncoderAttention",
    "ExpectedWeight",
    "Experts",
    "GatedActivation",
    "GatedRMSNorm",
    "LMHead",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "LightningIndex",
    "Linear",
    "Loadable",
    "MergedColumnParallelLinear",
    "Mixer",
    "MoE",
    "MoEConfig",
    "Normed",
    "QKVParallelLinear",
    "RMSNorm",
    "ReplicatedLinear",
    "Residual",
    "Rotary",
    "RoutingConfig",
    "RowParallelLinear",
    "Sent",
    "Shard",
    "SharedExpertsConfig",
    "SigmoidGate",
    "StepAngles",
    "Term",
    "UngatedActivation",
    "UngatedMLP",
    "Unreduced",
    "Unsummed",
    "VocabularyEmbedding",
    "WideRMSNorm",
    "axes_of_columns",
    "make_latent_attention",
    "make_rotary",
    "mla_scale",
    "summed",
]
