"""From a checkpoint to a draft model behind its target, and to the draft's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from atom_models.architectures.registry import find_architecture
from atom_models.checkpoint import CheckpointError
from atom_models.config.reading import read_config
from atom_models.drafting.choice import choose_draft
from atom_models.drafting.eagle import EagleHead
from atom_models.drafting.eagle3 import Eagle3Head
from atom_models.drafting.eagle_config import read_eagle_config
from atom_models.drafting.mtp import PredictionLayers
from atom_models.drafting.stored_head import read_stored_head
from atom_models.layers.loadable import expected_weights, loadable
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
    from atom_models.drafting.choice import DraftChoice

_NAMES_SHOWN = 3


def build_draft(
    checkpoint: Checkpoint,
    context: BuildContext,
    *,
    target: nn.Module,
    draft_checkpoint: Checkpoint | None = None,
) -> nn.Module:
    """The `DraftModel` for `target` without weights: its prediction layers, or the head in `draft_checkpoint`.

    It has the target's embedding and head where it has no others. Its layers with caches have names that are none of
    the target's. What is wrong with the names and shapes of its tensors is said here, before the target's are read; a
    folder without weights is taken as it is.

    Args:
        checkpoint: the target's.
        context: how the target was built. A head is held in plain numbers whatever the target is held in.
        target: it need not be loaded.
        draft_checkpoint: an EAGLE or EAGLE-3 head; None drafts with the target's prediction layers.

    Raises:
        CheckpointError: there is no draft model (see `choose_draft`), or its weights are not those that it needs.
        UnsupportedQuantizationError: `context` has no quantization, and the checkpoint has an unknown one.
        ValueError: the target was not built to give the outputs of its layers that the head reads.
    """
    choice = choose_draft(checkpoint, draft_checkpoint, model_impl=context.model_impl)
    if context.max_model_len is None:
        context = replace(context, max_model_len=checkpoint.max_model_len)
    try:
        if draft_checkpoint is None:
            draft = _prediction_layers(checkpoint, context, target, choice=choice)
        else:
            draft = _head(checkpoint, context, target, choice=choice, draft_checkpoint=draft_checkpoint)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{(draft_checkpoint or checkpoint).path}: {error}") from None
    stored = draft_checkpoint or checkpoint
    if read_headers(stored.path) is not None:
        source = _own_tensors(draft, stored)
        if draft_checkpoint is None and not source.names():
            raise _lost(draft, checkpoint)
        check_fit(draft, source.names(), str(stored.path), source.headers())
    return draft.eval()


def _prediction_layers(
    checkpoint: Checkpoint, context: BuildContext, target: nn.Module, *, choice: DraftChoice
) -> nn.Module:
    if context.quantization is UNQUANTIZED:
        context = replace(context, quantization=stored_quantization(checkpoint, "none"))
    architecture = cast("type[LlamaForCausalLM]", find_architecture(checkpoint.architecture))
    config = read_config(architecture.config_class, checkpoint.text_config)
    return PredictionLayers(architecture, config, context, target=target, num_layers=choice.num_layers)


def _head(
    checkpoint: Checkpoint,
    context: BuildContext,
    target: nn.Module,
    *,
    choice: DraftChoice,
    draft_checkpoint: Checkpoint,
) -> nn.Module:
    if choice.aux_hidden_states not in ((), context.aux_hidden_states):
        raise ValueError(
            f"the head reads outputs of the target's layers {choice.aux_hidden_states}, and the target gives those of "
            f"{context.aux_hidden_states}: build it with the aux_hidden_states of choose_draft()"
        )
    context, config = replace(context, quantization=UNQUANTIZED), read_eagle_config(draft_checkpoint)
    stored = read_stored_head(draft_checkpoint, config, context, target=checkpoint)
    if choice.method == "eagle":
        return EagleHead(config, context, target=target, fc_bias=stored.fc_bias)
    return Eagle3Head(config, context, target=target, stored=stored, aux_hidden_states=choice.aux_hidden_states)


def load_draft_weights(draft: nn.Module, checkpoint: Checkpoint, progress: bool) -> None:
    """Loads and packs the weights of a draft model that `build_draft` gave; no others are read.

    Args:
        checkpoint: the one that has them: the head's own, or the target's with its prediction layers.

    Raises:
        CheckpointError: as `load_weights`.
    """
    load_tensors(draft, _own_tensors(draft, checkpoint), str(checkpoint.path), progress=progress)


def _own_tensors(draft: Any, checkpoint: Checkpoint) -> RenamedSource:
    return RenamedSource(open_safetensors(checkpoint.path), draft.own_name)


def _lost(draft: nn.Module, checkpoint: Checkpoint) -> CheckpointError:
    expected = [name for layer in loadable(draft) for name in expected_weights(layer)]
    return CheckpointError(
        f"{checkpoint.path} declares prediction layers and holds none of their {len(expected)} weights "
        f"({', '.join(expected[:_NAMES_SHOWN])} ...), as happens when a model is converted: take a checkpoint that has "
        "them, or no mtp"
    )
