"""Whether a constraint is sound, told in the process that takes requests in: without a vocabulary."""

from __future__ import annotations

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.choice import BackendSetting, choose, has_xgrammar


def check_grammar(params: StructuredOutputParams, setting: BackendSetting = "auto") -> None:
    """Raise GrammarError for a constraint that no backend follows to the letter, of those that `setting` allows.

    llguidance judges all that it can read, whichever backend is to follow it: it ignores nothing. What xgrammar alone
    can read is judged in the engine: it brings torch along.
    """
    names, _ = choose(params, setting, has_xgrammar())
    if "llguidance" in names:
        from atom_core.structured_output.llguidance.backend import check

        check(params)
