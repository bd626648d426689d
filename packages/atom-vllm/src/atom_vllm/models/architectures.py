"""Which of vLLM's architectures are ours inside it, and the names of their wrappers."""

from __future__ import annotations

from atom_models import supported_architectures
from atom_models.architectures.registry import has_experts, has_labels, is_encoder
from atom_vllm import compat, settings


def overridden() -> tuple[str, ...]:
    """Architectures that write text, that vLLM has and we have, and that the user allows; sorted."""
    allowed = settings.allowed_architectures()
    decoders = (name for name in supported_architectures() if not is_encoder(name) and not has_labels(name))
    names = [name for name in decoders if compat.own_class(name) is not None]
    if allowed is not None:
        unknown = sorted(allowed - set(names))
        if unknown:
            raise ValueError(f"ATOM_VLLM_ARCHITECTURES names {unknown[0]}; there are {', '.join(sorted(names))}")
        names = [name for name in names if name in allowed]
    return tuple(sorted(names))


def wrapper_name(architecture: str) -> str:
    """What the class that vLLM gets is called in `atom_vllm.models.model_wrapper`.

    Mixtures of experts go by another wrapper, as users of ROCm/ATOM know it.
    """
    return f"ATOM{'MoE' if has_experts(architecture) else ''}_{architecture}"
