"""Models that guess further tokens from a target's hidden states: prediction layers (MTP), EAGLE and EAGLE-3 heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_models.drafting.choice import DraftChoice, choose_draft, prediction_layers
    from atom_models.drafting.draft_model import DraftModel
    from atom_models.drafting.loading import build_draft, load_draft_weights

__all__ = ["DraftChoice", "DraftModel", "build_draft", "choose_draft", "load_draft_weights", "prediction_layers"]

__getattr__ = lazy_names(__name__)
