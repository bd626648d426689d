"""From a checkpoint to a model, and to the layers for which a host keeps caches."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from atom_kernels.linear.asked_rows import ROWS_NOTE
from atom_kernels.select import plans_remembered
from atom_models.architectures.registry import find_architecture, other_modalities
from atom_models.checkpoint import CheckpointError
from atom_models.config.other_fields import unknown_fields
from atom_models.fallback.choice import choose_implementation
from atom_models.fallback.loading import construct_fallback, is_fallback, try_fallback
from atom_models.layers import Experts, Linear, Mixer
from atom_models.layers.loadable import loadable
from atom_models.layers.mixers.cache_scales import needs_cache_scales
from atom_models.quantization import AS_STORED, UNQUANTIZED, GGUFQuantization, choose_quantization
from atom_models.vision.reading import read_vision
from atom_models.vision.sees import num_tower_weights
from atom_models.weights.gguf_source import open_gguf
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
        choose_implementation(checkpoint, context.model_impl)  # refuses before the weights are looked at
        context = replace(context, quantization=stored_quantization(checkpoint, "none"))
    model = construct_model(checkpoint, context)
    if is_fallback(model):
        try_fallback(model)
        chosen = choose_implementation(checkpoint, context.model_impl)
        logger.info("%s is run by %s", checkpoint.architecture, chosen.describe())
    missing = missing_cache_scales(model, checkpoint, context)
    for line in (*config_warnings(model, checkpoint), *missing, *notes_of_plans(model)):
        logger.warning("%s", line)
    return model


def stored_quantization(checkpoint: Checkpoint, requested: str | None = None) -> Quantization:
    """The checkpoint's quantization, as its config and the headers of its files say; or `requested`, of plain weights.

    Matrices of a GGUF file stay in the file's formats, where there is one for them here; with "none", and with a format
    that they are to be rounded to, they are plain numbers first.

    Raises:
        UnsupportedQuantizationError: an unknown one, or a request on top of it.
        CheckpointError: the files are damaged.
    """
    if checkpoint.format == "gguf" and requested in (None, AS_STORED):
        return GGUFQuantization(open_gguf(checkpoint).packed_types())
    is_quantized = checkpoint.config.get("quantization_config") is not None and checkpoint.format == "safetensors"
    headers = read_headers(checkpoint.path) if is_quantized else None
    return choose_quantization(checkpoint.config, requested, headers)


def construct_model(checkpoint: Checkpoint, context: BuildContext) -> nn.Module:
    """As `build_model`, with the quantization of `context` whatever the checkpoint's is: enough to count layers."""
    if choose_implementation(checkpoint, context.model_impl).name == "transformers":
        return construct_fallback(checkpoint, context)
    model_class = find_architecture(checkpoint.architecture)
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    config = checkpoint.text_config
    if not checkpoint.has_head:
        # The embedding's table serves as the head, so that engines can run whole steps; its logits are never shown.
        config = {**config, "tie_word_embeddings": True}
    vision = None if context.language_model_only else read_vision(checkpoint)
    try:
        with plans_remembered():
            model = model_class(config, context) if vision is None else model_class(config, context, vision)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    return model.eval()


def config_warnings(model: nn.Module, checkpoint: Checkpoint) -> tuple[str, ...]:
    """A line for each field of the config that is set and unknown here, and one for what it takes and does not see.

    Layers of transformers know all of their fields, and are of text models alone.
    """
    if is_fallback(model):
        return ()
    modalities = () if getattr(model, "vision_spec", None) else other_modalities(checkpoint.config)
    beside_text = (
        f"{checkpoint.path}: {checkpoint.architecture} takes more than text (config.json has {', '.join(modalities)}); "
        "here it is served for text alone, and the weights for the rest are passed over",
    )
    unknown = unknown_fields(type(model.config), checkpoint.text_config)
    return (beside_text if modalities else ()) + tuple(
        f"{checkpoint.path}: config.json sets {name}, which {checkpoint.architecture} here does not know: ignored, and "
        "results may differ if the model depends on it"
        for name in unknown
    )


def missing_cache_scales(model: nn.Module, checkpoint: Checkpoint, context: BuildContext) -> tuple[str, ...]:
    """A line where the config declares scales of an fp8 KV cache, and the files lack those of layers that need them."""
    quantization = context.quantization
    blocks = [name.rpartition(".")[0] for name, layer in mixer_layers(model).items() if needs_cache_scales(layer)]
    missing = [block for block in blocks if quantization.cache_scales(block) is None]
    if not missing or quantization.cache_field is None:
        return ()
    return (
        f"{checkpoint.path}: quantization_config.{quantization.cache_field} declares scales for an fp8 KV cache, but "
        f"the files hold none for {len(missing)} layers (the first is {missing[0]}): the scale is 1 there, and numbers "
        "above 448 are cut off. fp8_per_token_head needs no scales of the checkpoint",
    )


def notes_of_plans(model: nn.Module) -> tuple[str, ...]:
    """What the plans of linears and of layers with a cache tell who serves, once each."""
    plans = [layer.plan for layer in mixer_layers(model).values()]
    notes = [plan.holds.note for plan in plans if plan is not None and plan.holds is not None]
    notes += [ROWS_NOTE for layer in model.modules() if isinstance(layer, Linear) and layer.rounds_as_asked]
    return tuple(dict.fromkeys(note for note in notes if note is not None))


def mixer_layers(model: nn.Module) -> dict[str, Mixer]:
    """Every layer that has a cache by the name under which the forward context finds it, in order of execution."""
    return {layer.name: layer for layer in model.modules() if isinstance(layer, Mixer)}


def num_idle_weights(model: nn.Module) -> int:
    """The number of a rank's weights that a token does not use: of experts that it does not choose, and a tower's."""
    return sum(weights.num_idle for layer in loadable(model) for weights in layer.weights()) + num_tower_weights(model)


def sizes_told_apart(model: nn.Module, most_tokens: int) -> list[int]:
    """Numbers of tokens, up to `most_tokens`, that its experts have different kernels for; it has its weights."""
    layers = {layer.problem: layer for layer in model.modules() if isinstance(layer, Experts)}
    return sorted({size for layer in layers.values() for size in layer.sizes_told_apart(most_tokens)})
