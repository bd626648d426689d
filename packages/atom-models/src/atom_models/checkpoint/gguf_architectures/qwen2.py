"""`qwen2`: Qwen2 and 2.5. Their sliding window, which no published config turns on, is not written."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, MLP, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader


def _config(header: GGUFHeader) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        # Queries, keys and values always have biases.
        "attention_bias": None,
    }


QWEN2 = GGUFArchitecture(config=_config, tensors={**ATTENTION, **MLP})
