"""`find_draft_model`: whether there is what a method of speculation drafts with, before any weights are loaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.speculation import SpeculationConfig
    from atom_models import Checkpoint


def find_draft_model(
    speculation: SpeculationConfig | None, model: str, checkpoint: Checkpoint
) -> SpeculationConfig | None:
    """`speculation` with its draft model as a folder that is here.

    Args:
        model: as it was asked for, for messages.
        checkpoint: of the model that generates.

    Raises:
        ConfigError: there is none.
    """
    if speculation is None or not speculation.is_by_model:
        return speculation
    method = speculation.method
    if find_spec("atom_models.drafting.loading") is None:
        raise ConfigError(f"method {method} is not supported by this version of ATOM: leave it out (built is ngram)")
    if speculation.model is None:
        from atom_models.drafting.loading import prediction_layers

        if prediction_layers(checkpoint) < 1:
            raise ConfigError(
                f"method {method} drafts with prediction layers, and {model} has none: leave it out, or take ngram"
            )
        return speculation
    if Path(speculation.model).exists():
        return speculation
    from atom_models import resolve_model

    return msgspec.structs.replace(speculation, model=str(resolve_model(speculation.model)))
