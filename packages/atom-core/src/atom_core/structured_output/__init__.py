"""Structured output: grammars that a request's text must follow, as masks over the vocabulary.

Two libraries do the parsing, each in a folder behind the protocols of `backend`; `constraints` says which one, and why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_core.structured_output.compiler import GrammarCompiler
    from atom_core.structured_output.compilers import Compilers
    from atom_core.structured_output.constrained_requests import ConstrainedRequests
    from atom_core.structured_output.constraints.grammar import GrammarError, check_limits
    from atom_core.structured_output.matcher import Matcher

_HOMES = {
    "Compilers": "compilers",
    "ConstrainedRequests": "constrained_requests",
    "GrammarCompiler": "compiler",
    "GrammarError": "constraints.grammar",
    "Matcher": "matcher",
    "check_limits": "constraints.grammar",
}

__all__ = ["Compilers", "ConstrainedRequests", "GrammarCompiler", "GrammarError", "Matcher", "check_limits"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
