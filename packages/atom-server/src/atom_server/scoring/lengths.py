"""How many tokens pairs may have: each of them, and all of a request."""

from __future__ import annotations

from atom_core.engine.inputs.validation import prompt_too_long
from atom_server.errors import APIError
from atom_server.state import ServerState

# The most tokens of all pairs of a request. Each pair repeats its texts: a long query counts for every document.
MAX_TOTAL_TOKENS = 2**22


def check_lengths(state: ServerState, lengths: list[int], param: str) -> None:
    """Refuse pairs that do not fit the model, and more tokens than one request may have, before they are laid out."""
    info = state.engine.info
    if (longest := max(lengths)) > info.max_prompt_len:
        raise prompt_too_long(longest, info.max_model_len, param, most=info.max_prompt_len)
    if (total := sum(lengths)) > MAX_TOTAL_TOKENS:
        message = f"all pairs together have {total} tokens; at most {MAX_TOTAL_TOKENS} fit one request: send fewer"
        raise APIError(400, message, param=param, code="too_many_tokens")
