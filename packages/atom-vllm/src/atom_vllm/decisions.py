"""What ATOM does in an engine of a given configuration, and why not: from that configuration alone, no weights."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from atom_vllm import compat, features, platform
from atom_vllm.models.architectures import overridden
from atom_vllm.models.model_wrapper import our_class


@dataclass(frozen=True)
class Decision:
    """Who runs a model.

    Attributes:
        architecture: as the checkpoint names it.
        model_reason: why the model is vLLM's own; None where it is ours.
        attention_reason: why vLLM attends; None where we do.
        attention: the class that attends.
    """

    architecture: str
    model_reason: str | None
    attention_reason: str | None
    attention: str

    @property
    def model(self) -> str:
        """The wrapper of ours that runs it."""
        ours = our_class(self.architecture)
        return f"{ours.__module__}:{ours.__name__}"


def decide(vllm_config: Any) -> Decision:
    """For the first architecture that the model names.

    Raises:
        Whatever vLLM's own choice of an attention backend raises.
    """
    model = vllm_config.model_config
    architecture = model.hf_config.architectures[0]
    if architecture in overridden():
        model_reason = features.why_not_ours(vllm_config)
    else:
        model_reason = "it is not among ATOM's, or ATOM_VLLM_ARCHITECTURES leaves it out"
    if model.use_mla and model_reason is None:
        from atom_vllm.mixers.latent_attention import AtomLatentBackend as backend

        return Decision(architecture, None, None, f"{backend.__module__}.{backend.__name__}")
    reason, name = _backend(vllm_config)
    return Decision(architecture, model_reason, reason, name)


def _backend(vllm_config: Any) -> tuple[str | None, str]:
    """Why vLLM attends, and the class that does, in layers that have no window and no sinks."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    model, cache_dtype = vllm_config.model_config, vllm_config.cache_config.cache_dtype
    with set_current_vllm_config(vllm_config):
        backend = get_attn_backend(model.get_head_size(), model.dtype, cache_dtype, use_mla=bool(model.use_mla))
    name = f"{backend.__module__}.{backend.__name__}"
    if name == platform.BACKEND:
        return None, name
    asked = SimpleNamespace(
        head_size=model.get_head_size(), dtype=model.dtype, kv_cache_dtype=cache_dtype, use_mla=bool(model.use_mla)
    )
    with set_current_vllm_config(vllm_config):
        return platform.why_not_chosen(compat.asked_backend(vllm_config), asked), name
