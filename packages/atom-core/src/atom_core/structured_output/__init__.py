"""Structured output: grammars that a request's text must follow, as masks over the vocabulary. Torch-free.

llguidance does the parsing. It needs no torch, builds its automata as text arrives, and counts fuel: no pattern can
take more than a set amount of work, neither when a grammar is checked nor in a step.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_core.structured_output.compiler import GrammarCompiler
    from atom_core.structured_output.constrained_requests import ConstrainedRequests
    from atom_core.structured_output.grammar import GrammarError, check_limits, grammar_of
    from atom_core.structured_output.matcher import Matcher

_HOMES = {
    "ConstrainedRequests": "constrained_requests",
    "GrammarCompiler": "compiler",
    "GrammarError": "grammar",
    "Matcher": "matcher",
    "check_limits": "grammar",
    "grammar_of": "grammar",
}

__all__ = ["ConstrainedRequests", "GrammarCompiler", "GrammarError", "Matcher", "check_limits", "grammar_of"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
