"""Which backend follows a constraint, and why.

llguidance takes a keyword at its word or refuses it; xgrammar leaves out what it does not know. So xgrammar gets only
what it was seen to enforce (`xgrammar.limits`), and by default only what it is quick at.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.grammar import GrammarError, json_value, kind_of
from atom_core.structured_output.constraints.structural_tag import format_of
from atom_core.structured_output.xgrammar.limits import why_slow, why_wrong

BackendSetting = Literal["auto", "xgrammar", "llguidance"]
INSTALL = "pip install 'xgrammar>=0.2.8'"


def has_xgrammar() -> bool:
    """Whether xgrammar is installed; it is not imported for that."""
    return find_spec("xgrammar") is not None and find_spec("tvm_ffi") is not None


def choose(params: StructuredOutputParams, setting: BackendSetting, installed: bool) -> tuple[tuple[str, ...], str]:
    """Names of the backends to try, in this order, and why the first is first.

    Args:
        params: passed `check_limits`.
        setting: what was asked for; "xgrammar" puts up with what it is slow at.
        installed: xgrammar can be used.

    Raises:
        GrammarError: only xgrammar knows what is asked for, and it cannot be used.
    """
    needs_xgrammar = _needs_xgrammar(params)
    if setting == "llguidance":
        if needs_xgrammar:
            raise GrammarError(f"{needs_xgrammar}, and structured_output_backend is llguidance")
        return ("llguidance",), "structured_output_backend asks for it"
    if not installed:
        if needs_xgrammar:
            raise GrammarError(f"{needs_xgrammar}, which is not installed: {INSTALL}")
        return ("llguidance",), "xgrammar is not installed"
    objection = why_wrong(params)
    if needs_xgrammar:
        if objection is not None:
            raise GrammarError(f"{needs_xgrammar}, and xgrammar {objection}")
        return ("xgrammar",), needs_xgrammar
    if objection is None and setting == "auto":
        objection = why_slow(params)
    if objection is not None:
        return ("llguidance",), f"xgrammar {objection}"
    return ("xgrammar", "llguidance"), "it enforces all of this"


def _needs_xgrammar(params: StructuredOutputParams) -> str | None:
    if kind_of(params) != "structural_tag":
        return None
    is_foreign = isinstance(format_of(json_value("structural_tag", params.structural_tag)), dict)
    return "structural_tag has formats that only xgrammar knows" if is_foreign else None
