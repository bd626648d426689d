"""Whether a constraint is sound, told in the process that takes requests in: without a vocabulary, without xgrammar."""

from __future__ import annotations

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.choice import choose, has_xgrammar


def check_grammar(params: StructuredOutputParams) -> None:
    """Raise GrammarError for a constraint that no backend follows to the letter.

    llguidance judges all that it can read, whichever backend is to follow it: it ignores nothing.
    """
    names, _ = choose(params, "auto", has_xgrammar())
    if "llguidance" in names:
        from atom_core.structured_output.llguidance_backend import check

        check(params)
