"""From a checkpoint to a model, and to the layers for which a host keeps caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from atom_models.architectures.registry import find_architecture
from atom_models.checkpoint import CheckpointError
from atom_models.layers import Attention, Experts, LatentAttention
from atom_models.quantization import UNQUANTIZED, choose_quantization

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint


def build_model(checkpoint: Checkpoint, context: BuildContext) -> nn.Module:
    """The checkpoint's model without weights: no layer holds memory until its first tensor is loaded.

    Raises:
        UnsupportedArchitectureError: the architecture is not implemented.
        UnsupportedQuantizationError: `context` has no quantization, and the checkpoint has an unknown one.
        CheckpointError: the config lacks a field or contradicts itself, or the ranks cannot share the model.
    """
    model_class = find_architecture(checkpoint.architecture)
    if context.quantization is UNQUANTIZED:
        context = replace(context, quantization=choose_quantization(checkpoint.config))
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    try:
        model = model_class(checkpoint.text_config, context)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if not isinstance(model, nn.Module):
        raise TypeError(f"{model_class.__name__} is no torch module")
    return model.eval()


def attention_layers(model: nn.Module) -> dict[str, Attention | LatentAttention]:
    """Every attention layer by the name under which the forward context finds its cache, in order of execution."""
    return {layer.name: layer for layer in model.modules() if isinstance(layer, (Attention, LatentAttention))}


def num_idle_weights(model: nn.Module) -> int:
    """How many weights of this rank's experts a token is not multiplied by, since it does not choose those experts."""
    return sum(layer.num_idle_weights for layer in model.modules() if isinstance(layer, Experts))
