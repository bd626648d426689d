"""Nodes in which no mistake could be seen: words for people, hints for compilers, and what binds programmers alone."""

from __future__ import annotations

import ast

_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
# Keywords whose values change nothing that a test could judge -> why.
UNSEEN_KEYWORDS = {
    "strict": "of zip: it refuses only what a mistake of ours would give",
    "frozen": "a class that lets its fields be set does the same until somebody sets one",
    "kw_only": "it refuses calls that nobody writes",
    "gc": "whether the collector of garbage goes through an object costs time alone",
    "repr": "which fields the text of an object for programmers has",
    "non_blocking": "a copy that is waited for is the same copy",
    "pin_memory": "where the memory of a copy lies costs time alone",
    "stacklevel": "which line a warning names",
    "num_warps": "how a GPU's compiler shares out a kernel costs time alone",
    "num_stages": "how far a GPU's compiler loads ahead costs time alone",
    "leave": "whether a progress bar stays on the screen",
    "unit_scale": "how a progress bar writes its numbers",
    "include_url": "pydantic's link to its own documentation, which is not read",
    "include_context": "what pydantic adds to an error, which is not read",
}


def is_unseen(node: ast.AST) -> bool:
    """Whether no mistake in a node could be seen, whatever the tests."""
    return (
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        or (isinstance(node, ast.keyword) and node.arg in UNSEEN_KEYWORDS)
        or (isinstance(node, ast.Expr) and _is_log_line(node.value))
        or _is_log_line(node)
        or _is_abstract(node)
    )


def _is_log_line(node: ast.AST) -> bool:
    """``logger.info(...)``: a log says what happens, and does nothing."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS):
        return False
    return isinstance(node.func.value, ast.Name) and "log" in node.func.value.id.lower()


def _is_abstract(node: ast.AST) -> bool:
    """``raise NotImplementedError``: each class that is made has a method of its own in its place."""
    return isinstance(node, ast.Raise) and getattr(node.exc, "id", "") == "NotImplementedError"
