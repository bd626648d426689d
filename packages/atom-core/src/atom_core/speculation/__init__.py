"""Speculative decoding: tokens are guessed, and verified several in a step. No guess can change what is generated."""

from atom_core.speculation.config import SpeculationConfig, SuffixConfig
from atom_core.speculation.drafter import NO_DRAFT, Draft, Drafter, Drafters, EachByItself
from atom_core.speculation.factory import make_speculation
from atom_core.speculation.speculation import Candidate, NextDrafts, Speculation
from atom_core.speculation.statistics import DraftStatistics
from atom_core.speculation.trail import Trail

__all__ = [
    "NO_DRAFT",
    "Candidate",
    "Draft",
    "DraftStatistics",
    "Drafter",
    "Drafters",
    "EachByItself",
    "NextDrafts",
    "Speculation",
    "SpeculationConfig",
    "SuffixConfig",
    "Trail",
    "make_speculation",
]
