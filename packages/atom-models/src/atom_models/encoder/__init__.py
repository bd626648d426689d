"""What encoders share: names of their weights, and what is made of their hidden states."""

from atom_models.checkpoint.weight_names import OwnNames
from atom_models.encoder.encoder import Encoder, EncoderConfig
from atom_models.encoder.heads import TanhHead

__all__ = ["Encoder", "EncoderConfig", "OwnNames", "TanhHead"]
