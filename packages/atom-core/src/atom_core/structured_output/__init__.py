"""Structured output: grammars that a request's text must follow, as masks over the vocabulary.

Two libraries do the parsing, each in a folder behind the protocols of `backend`; `constraints` says which one, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_core.structured_output.compiler import GrammarCompiler
    from atom_core.structured_output.compilers import Compilers
    from atom_core.structured_output.constrained_requests import ConstrainedRequests
    from atom_core.structured_output.constraints.grammar import GrammarError, check_limits
    from atom_core.structured_output.matcher import Matcher

__all__ = ["Compilers", "ConstrainedRequests", "GrammarCompiler", "GrammarError", "Matcher", "check_limits"]

__getattr__ = lazy_names(__name__)
