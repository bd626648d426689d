"""What vLLM says of the form of a checkpoint's weights: whether ours reads it, and the headers of its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom_vllm import compat

if TYPE_CHECKING:
    from atom_models.quantization import Headers

# vLLM brings these to their form by a loader of its own, which asks its own models how.
_LOADED_BY_VLLM = ("bitsandbytes",)
# Fields of a config that count the experts of a mixture, by family.
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# A matrix of experts in a layer of the checkpoint, by `model_type`, and of all other mixtures.
_AN_EXPERT = {
    "gpt_oss": "mlp.experts.gate_up_proj",
    "minimax_m2": "block_sparse_moe.experts.0.w1",
    "mixtral": "block_sparse_moe.experts.0.w1",
}
_AN_EXPERT_ELSE = "mlp.experts.0.gate_proj"


def why_quantization_is_left(vllm_config: Any) -> str | None:
    """Why vLLM's own classes must hold the weights; None where they are plain, or quantized as ours read them."""
    model = vllm_config.model_config
    if model.quantization is None:
        return None
    given = compat.published_quantization(model.hf_config)
    if given is None:
        return f"the quantization {model.quantization} is asked for"
    if model.quantization in _LOADED_BY_VLLM:
        return f"vLLM has a loader of its own for {model.quantization}"
    if getattr(model, "quantization_config", None) is not None:
        return f"a quantization beside that of the checkpoint ({model.quantization}) is asked for"
    text_config = getattr(model, "hf_text_config", model.hf_config)
    return _why_not_read(given, model.dtype, expert=_name_of_an_expert(text_config))


def headers_of(vllm_config: Any) -> Headers | None:
    """Shapes and dtypes of a quantized checkpoint's tensors, unread; None where it is plain, or nobody can tell.

    Raises:
        CheckpointError: a file of a local folder is damaged or missing.
    """
    from atom_models.quantization import Headers
    from atom_models.weights.safetensors_source import read_header, read_headers

    if vllm_config.model_config.quantization is None:
        return None
    folder = Path(vllm_config.model_config.model)
    if folder.is_dir():
        return read_headers(folder)
    found = compat.safetensors_headers(vllm_config.model_config)
    return Headers({name: read_header(name, *header) for name, header in found.items()}) if found else None


def _name_of_an_expert(hf_config: Any) -> str | None:
    """A matrix of experts in the last layer, where mixtures have them; None where the model is no mixture."""
    if not any((getattr(hf_config, name, None) or 0) > 1 for name in _NUM_EXPERTS):
        return None
    last = (getattr(hf_config, "num_hidden_layers", None) or 1) - 1
    return f"model.layers.{last}.{_AN_EXPERT.get(getattr(hf_config, 'model_type', ''), _AN_EXPERT_ELSE)}"


def _why_not_read(given: Any, dtype: Any, *, expert: str | None = None) -> str | None:
    """`expert` is the name of a matrix of experts; None where there are none."""
    from atom_kernels.platform import detect_platform
    from atom_models.quantization import (
        EXPERTS,
        LINEARS,
        UnsupportedQuantizationError,
        read_published,
        why_never_packed,
    )

    try:
        published = read_published(given)
    except UnsupportedQuantizationError as error:
        return str(error)
    platform = detect_platform()
    held = [(LINEARS, "", layout) for _, layout in published.groups]
    held += [(EXPERTS, "experts in ", published.choose(expert).layout)] if expert is not None else []
    for kind, what, layout in dict.fromkeys(held):
        if layout is None:
            continue
        # Our layers would hold plain numbers, which may take several times the memory of vLLM's own.
        inputs = layout.input_format
        reason = why_never_packed(kind, layout.weight_format, dtype, platform, input_format=inputs)
        if reason is not None:
            return f"no kernel of ours reads {what}{layout.name} here ({reason})"
    return None
