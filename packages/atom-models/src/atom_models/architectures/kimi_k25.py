"""Kimi-K2.5 and K2.6: DeepSeek-V3's layers behind other names, and experts that are published in int4.

Published checkpoints take images and videos too; their text model alone is built.
"""

from __future__ import annotations

from atom_models.architectures.deepseek_v3 import DeepseekV3ForCausalLM


class KimiK25ForConditionalGeneration(DeepseekV3ForCausalLM):
    """The part of the published model that reads text; what reads images is left unread."""

    decoder_prefix = "language_model.model"
    head_prefix = "language_model.lm_head"
    passed_over = ("vision_tower.", "mm_projector.")
