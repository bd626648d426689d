"""Kimi-K2.5 and K2.6: DeepSeek-V3's layers behind other names, that see, and experts that are published in int4."""

from __future__ import annotations

from atom_models.architectures.deepseek_v3 import DeepseekV3ForCausalLM
from atom_models.vision.sees import Sees
from atom_models.vision.towers.moonvit import PROJECTOR, MoonViTTower


class KimiK25ForConditionalGeneration(Sees, DeepseekV3ForCausalLM):
    """Weights go by the names of the published checkpoints."""

    tower = MoonViTTower
    decoder_prefix = "language_model.model"
    head_prefix = "language_model.lm_head"
    vision_prefixes = ("vision_tower", PROJECTOR)
