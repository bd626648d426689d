"""A draft model for the engine, built and loaded through `atom_models`, and the model that it runs behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atom_core.speculation.config import SpeculationConfig
from atom_core.worker.model.engine_draft import EngineDraft
from atom_models import BuildContext, Checkpoint, build_model, mixer_layers, open_checkpoint


def build_with_draft(
    checkpoint: Checkpoint, context: BuildContext, speculation: SpeculationConfig
) -> tuple[Any, EngineDraft]:
    """A model that gives what its draft model reads, and that draft model, both without weights."""
    from atom_models.drafting.loading import build_draft

    draft_checkpoint = _checkpoint_of(speculation)
    target = build_model(checkpoint, context)
    draft = build_draft(checkpoint, context, target=target, draft_checkpoint=draft_checkpoint)
    if draft.aux_hidden_states:
        # Models hold no memory yet, so that building one twice costs little.
        target = build_model(checkpoint, replace(context, aux_hidden_states=tuple(draft.aux_hidden_states)))
        draft = build_draft(checkpoint, context, target=target, draft_checkpoint=draft_checkpoint)
    return target, EngineDraft(draft, mixer_layers(draft))


def load_draft(draft: EngineDraft, checkpoint: Checkpoint, speculation: SpeculationConfig, **options: Any) -> None:
    """Load the weights of a draft model, after those of the model that it runs behind."""
    from atom_models.drafting.loading import load_draft_weights

    load_draft_weights(draft.model, checkpoint, draft_checkpoint=_checkpoint_of(speculation), **options)


def _checkpoint_of(speculation: SpeculationConfig) -> Checkpoint | None:
    return None if speculation.model is None else open_checkpoint(speculation.model)
