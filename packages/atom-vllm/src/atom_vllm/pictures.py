"""Which models see by a tower of ours inside vLLM, and what of vLLM's ways to give them pictures ours lacks."""

from __future__ import annotations

from typing import Any

# Those whose text is ours as well, and whose positions and tokens have been compared with vLLM's.
ARCHITECTURES = (
    "KimiK25ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
)


def why_pictures_are_left(model: Any) -> str | None:
    """Why vLLM's own model must take the inputs of a ``ModelConfig``; None where it takes text, or ours sees too."""
    if not model.is_multimodal_model:
        return None
    if model.hf_config.architectures[0] not in ARCHITECTURES:
        return "inputs other than text are asked for"
    asked = model.multimodal_config
    reasons = {
        "pictures may be given as embeddings": bool(asked.enable_mm_embeds),
        "tokens of videos are to be left out": bool(asked.video_pruning_rate),
        "ranks are to share pictures out": asked.mm_encoder_tp_mode != "weights",
        "the tower is asked for by itself": bool(getattr(asked, "mm_encoder_only", False)),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
