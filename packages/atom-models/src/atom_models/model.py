"""From a checkpoint to a model, and to the layers for which a host keeps caches."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from atom_models.architectures.registry import check_architecture, find_architecture
from atom_models.checkpoint import CheckpointError
from atom_models.config.other_fields import unknown_fields
from atom_models.layers import Experts, Mixer
from atom_models.quantization import UNQUANTIZED, choose_quantization
from atom_models.weights.safetensors_source import read_headers

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint
    from atom_models.quantization import Quantization

logger = logging.getLogger(__name__)


def build_model(checkpoint: Checkpoint, context: BuildContext) -> nn.Module:
    """The checkpoint's model without weights: no layer holds memory until its first tensor is loaded.

    Raises:
        UnsupportedArchitectureError: the architecture is not implemented.
        UnsupportedQuantizationError: `context` has no quantization, and the checkpoint has an unknown one.
        CheckpointError: the config lacks a field, contradicts itself or asks for what is not implemented, or the ranks
            cannot share the model.
    """
    if context.quantization is UNQUANTIZED:
        check_architecture(checkpoint.architecture, checkpoint.config)
        context = replace(context, quantization=stored_quantization(checkpoint))
    model = construct_model(checkpoint, context)
    for line in config_warnings(model, checkpoint):
        logger.warning("%s", line)
    return model


def stored_quantization(checkpoint: Checkpoint, requested: str | None = None) -> Quantization:
    """The checkpoint's quantization, as its config and the headers of its files say; or `requested`, of plain weights.

    Raises:
        UnsupportedQuantizationError: an unknown one, or a request on top of it.
        CheckpointError: the files are damaged.
    """
    is_quantized = checkpoint.config.get("quantization_config") is not None and checkpoint.format == "safetensors"
    headers = read_headers(checkpoint.path) if is_quantized else None
    return choose_quantization(checkpoint.config, requested, headers)


def construct_model(checkpoint: Checkpoint, context: BuildContext) -> nn.Module:
    """As `build_model`, with the quantization of `context` whatever the checkpoint's is: enough to count layers."""
    check_architecture(checkpoint.architecture, checkpoint.config)
    model_class = find_architecture(checkpoint.architecture)
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    config = checkpoint.text_config
    if not checkpoint.has_head:
        # The embedding's table serves as the head, so that engines can run whole steps; its logits are never shown.
        config = {**config, "tie_word_embeddings": True}
    try:
        model = model_class(config, context)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    return model.eval()


def config_warnings(model: nn.Module, checkpoint: Checkpoint) -> tuple[str, ...]:
    """A line for each field of the config that is set and unknown here."""
    unknown = unknown_fields(type(model.config), checkpoint.text_config)
    return tuple(
        f"{checkpoint.path}: config.json sets {name}, which {checkpoint.architecture} here does not know: ignored, and "
        "results may differ if the model depends on it"
        for name in unknown
    )


def mixer_layers(model: nn.Module) -> dict[str, Mixer]:
    """Every layer that has a cache by the name under which the forward context finds it, in order of execution."""
    return {layer.name: layer for layer in model.modules() if isinstance(layer, Mixer)}


def num_idle_weights(model: nn.Module) -> int:
    """The number of this rank's weights that a token does not use: those of the experts that it does not choose."""
    return sum(layer.num_idle_weights for layer in model.modules() if isinstance(layer, Experts))
