"""`qwen3`: Qwen3."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, HEAD_NORMS, MLP, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader


def _config(header: GGUFHeader) -> dict[str, Any]:
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


QWEN3 = GGUFArchitecture(config=_config, tensors={**ATTENTION, **HEAD_NORMS, **MLP})
