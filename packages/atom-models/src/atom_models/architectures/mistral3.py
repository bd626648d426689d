"""Mistral Small 3.1 and 3.2: Mistral that sees by the tower of Pixtral, https://arxiv.org/abs/2410.07073."""

from __future__ import annotations

from atom_models.architectures.mistral import MistralForCausalLM
from atom_models.vision.sees import Sees
from atom_models.vision.towers.pixtral import PROJECTOR, PixtralTower


class Mistral3ForConditionalGeneration(Sees, MistralForCausalLM):
    """Weights go by the names of the published checkpoints."""

    tower = PixtralTower
    decoder_prefix = "language_model.model"
    head_prefix = "language_model.lm_head"
    vision_prefixes = ("vision_tower", PROJECTOR)
