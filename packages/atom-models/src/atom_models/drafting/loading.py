"""From a checkpoint to a draft model behind its target, and to the draft's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from atom_models.architectures.registry import find_architecture
from atom_models.checkpoint import CheckpointError
from atom_models.config.reading import read_config
from atom_models.drafting.choice import choose_draft
from atom_models.drafting.mtp import PredictionLayers
from atom_models.model import stored_quantization
from atom_models.quantization import UNQUANTIZED
from atom_models.weights.filling import check_fit
from atom_models.weights.loader import load_tensors
from atom_models.weights.renamed_source import RenamedSource
from atom_models.weights.safetensors_source import open_safetensors, read_headers

if TYPE_CHECKING:
    from atom_models.architectures.llama import LlamaForCausalLM
    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint

_NAMES_SHOWN = 3


def build_draft(checkpoint: Checkpoint, context: BuildContext, *, target: nn.Module) -> nn.Module:
    """The `DraftModel` for `target` without weights, which has the target's embedding and head.

    Its layers with caches have names that are none of the target's. Tensors are named but not read, so that what is
    wrong with them is known before the target's are; a folder without weights is taken as it is.

    Args:
        checkpoint: of the target.
        context: how the target was built.
        target: it need not be loaded.

    Raises:
        CheckpointError: there is no draft model (see `choose_draft`), or its weights are not those that it needs.
        UnsupportedQuantizationError: `context` has no quantization, and the checkpoint has an unknown one.
    """
    choice = choose_draft(checkpoint, model_impl=context.model_impl)
    if context.quantization is UNQUANTIZED:
        context = replace(context, quantization=stored_quantization(checkpoint, "none"))
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    architecture = cast("type[LlamaForCausalLM]", find_architecture(checkpoint.architecture))
    config = read_config(architecture.config_class, checkpoint.text_config)
    try:
        draft = PredictionLayers(architecture, config, context, target=target, num_layers=choice.num_layers)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if read_headers(checkpoint.path) is not None:
        _check_weights(draft, checkpoint)
    return draft.eval()


def load_draft_weights(draft: nn.Module, checkpoint: Checkpoint, progress: bool = True) -> None:
    """Loads and packs the weights of a draft model that `build_draft` gave; no others are read.

    Raises:
        CheckpointError: as `load_weights`.
    """
    load_tensors(draft, _own_tensors(draft, checkpoint), str(checkpoint.path), progress=progress)


def _own_tensors(draft: Any, checkpoint: Checkpoint) -> RenamedSource:
    return RenamedSource(open_safetensors(checkpoint.path), draft.own_name)


def _check_weights(draft: nn.Module, checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint that lacks weights of the draft, or has them in other shapes."""
    source = _own_tensors(draft, checkpoint)
    if source.names():
        check_fit(draft, source.names(), str(checkpoint.path), source.headers())
        return
    expected = [name for layer in draft.modules() for name in getattr(layer, "expected_weights", dict)()]
    raise CheckpointError(
        f"{checkpoint.path} declares prediction layers and holds none of their {len(expected)} weights "
        f"({', '.join(expected[:_NAMES_SHOWN])} ...), as happens when a model is converted: take a checkpoint that has "
        "them, or no mtp"
    )
