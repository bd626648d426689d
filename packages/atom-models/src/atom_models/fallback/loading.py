"""From a checkpoint to transformers' layers. Nothing of transformers is imported until there is such a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.weight_names import weight_names
from atom_models.fallback.admission import refuse

if TYPE_CHECKING:
    from torch import nn

    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint


def construct_fallback(checkpoint: Checkpoint, context: BuildContext) -> nn.Module:
    """The checkpoint's model of transformers without weights.

    Raises:
        FallbackRefusedError: it would not give its own results here; the message says why.
    """
    from atom_models.fallback.model import TransformersForCausalLM
    from atom_models.fallback.skeleton import read_config
    from atom_models.quantization import UNQUANTIZED
    from atom_models.vision.reading import read_vision

    if context.quantization is not UNQUANTIZED and getattr(context.quantization, "name", "none") != "none":
        raise refuse(checkpoint.model_type, "they run on plain weights: leave quantization out")
    if not checkpoint.has_head:
        raise refuse(checkpoint.model_type, "they want a head, and the checkpoint has a decoder alone")
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    vision = None if context.language_model_only else read_vision(checkpoint)
    spec, names = None if vision is None else vision.spec, weight_names(checkpoint.path)
    return TransformersForCausalLM(read_config(checkpoint), context, spec, names).eval()


def try_fallback(model: Any) -> None:
    """Tries a small model of the same class and kind of config; once in a process for each.

    Raises:
        FallbackRefusedError: packed sequences would get other numbers than each of them alone.
    """
    from atom_models.fallback.trial import check_trial

    check_trial(model.config.model_type, model.config.to_dict(), model.vision_spec)


def is_fallback(model: nn.Module) -> bool:
    """Whether a model is made of transformers' layers."""
    return type(model).__name__ == "TransformersForCausalLM"
