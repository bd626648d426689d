"""A draft model for the engine, built and loaded through `atom_models`, and the model that it runs behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from atom_core.speculation.config import SpeculationConfig
from atom_core.worker.model.engine_draft import EngineDraft
from atom_models import (
    BuildContext,
    Checkpoint,
    build_model,
    load_dummy_weights,
    load_weights,
    mixer_layers,
    open_checkpoint,
)
from atom_models.model import stored_quantization

# What the names of a whole draft model's layers begin with beside those of the model that it drafts for.
WHOLE_MODEL = "draft:"


def build_with_draft(
    checkpoint: Checkpoint, context: BuildContext, speculation: SpeculationConfig
) -> tuple[Any, EngineDraft]:
    """A model that gives what its draft model reads, and that draft model, both without weights."""
    if speculation.is_by_whole_model:
        return build_model(checkpoint, context), _build_whole(context, speculation)
    from atom_models.drafting.choice import choose_draft
    from atom_models.drafting.loading import build_draft

    head = _open_head(speculation)
    choice = choose_draft(checkpoint, head, model_impl=context.model_impl)
    context = replace(context, aux_hidden_states=choice.aux_hidden_states)
    target = build_model(checkpoint, context)
    draft: Any = build_draft(checkpoint, _of_draft(context), target=target, draft_checkpoint=head)
    return target, EngineDraft(draft, mixer_layers(draft), ranks=context.collectives)


def load_draft(
    draft: EngineDraft,
    checkpoint: Checkpoint,
    speculation: SpeculationConfig,
    *,
    dummy: bool,
    device: torch.device | str,
    progress: bool,
) -> None:
    """Load the weights of a draft model, after those of the model that it runs behind."""
    model: Any = draft.model
    if speculation.is_by_whole_model:
        stored = _open_model(speculation)
        if dummy:
            load_dummy_weights(model.model, stored, device=device)
        else:
            load_weights(model.model, stored, progress=progress)
        return
    if dummy:
        load_dummy_weights(model, device=device)
        return
    from atom_models.drafting.loading import load_draft_weights

    load_draft_weights(model, _open_head(speculation) or checkpoint, progress)


def _build_whole(context: BuildContext, speculation: SpeculationConfig) -> EngineDraft:
    from atom_models.drafting.whole_model import WholeModel

    checkpoint = _open_model(speculation)
    quantization = stored_quantization(checkpoint, speculation.quantization)
    model = build_model(checkpoint, replace(_of_draft(context), quantization=quantization)).eval()
    mixers = {f"{WHOLE_MODEL}{name}": mixer for name, mixer in mixer_layers(model).items()}
    return EngineDraft(WholeModel(model), mixers, WHOLE_MODEL, ranks=context.collectives)


def _of_draft(context: BuildContext) -> BuildContext:
    """Adapters are the model's own: what is drafted without them is only a guess. Engines draft each by itself."""
    return replace(context, takes_adapters=False, groups=context.groups.of_engine())


def _open_model(speculation: SpeculationConfig) -> Checkpoint:
    if speculation.model is None:
        raise ValueError(f"method {speculation.method} has no model: it must be found before an engine is built")
    return open_checkpoint(speculation.model)


def _open_head(speculation: SpeculationConfig) -> Checkpoint | None:
    return None if speculation.model is None else open_checkpoint(speculation.model)
