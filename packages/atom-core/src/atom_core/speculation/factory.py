"""`make_speculation`: what a configuration asks for."""

from __future__ import annotations

from functools import partial

from atom_core.speculation.config import SpeculationConfig
from atom_core.speculation.drafter import EachByItself
from atom_core.speculation.ngram import NgramDrafter
from atom_core.speculation.speculation import Speculation
from atom_core.speculation.suffix.drafters import SuffixDrafters


def make_speculation(config: SpeculationConfig | None) -> Speculation | None:
    """The speculation of an engine; None without one."""
    if config is None:
        return None
    if config.is_by_model:
        return Speculation(config)
    if config.method == "suffix":
        return Speculation(config, SuffixDrafters(config.suffix))
    by_ngrams = partial(NgramDrafter, config.prompt_lookup_min, config.prompt_lookup_max)
    return Speculation(config, EachByItself(by_ngrams))
