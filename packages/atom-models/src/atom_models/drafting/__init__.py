"""Models that guess further tokens from a target's hidden states: prediction layers (MTP), EAGLE and EAGLE-3 heads."""

from atom_models.drafting.draft_model import DraftModel

__all__ = ["DraftModel"]
