"""Pages in one file that need nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse;margin-bottom:1.5em}
th,td{padding:.3em .9em;border-bottom:1px solid #ddd;text-align:right}th:first-child,td:first-child{text-align:left}
svg{max-width:100%;height:auto}.bad{color:#b00020;font-weight:600}.good{color:#00703c}
"""


class Marked(str):
    """A text with a class of the page's style.

    Attributes:
        kind: "bad" or "good".
    """

    kind: str

    def __new__(cls, text: str, kind: str) -> Marked:
        """The text, marked."""
        marked = super().__new__(cls, text)
        marked.kind = kind
        return marked


def page(title: str, *parts: str) -> str:
    """A whole page; `parts` are HTML, and `title` is text."""
    said = html.escape(title)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{said}</title><style>{_STYLE}</style>'
    return f"{head}<h1>{said}</h1>{''.join(parts)}</html>\n"


def section(title: str, *parts: str) -> str:
    """A part of a page under a heading."""
    return f"<h2>{html.escape(title)}</h2>{''.join(parts)}"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table of texts."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ["".join(map(_cell, row)) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in ([top] if top else []) + lines) + "</table>"


def _cell(text: str) -> str:
    kind = f' class="{text.kind}"' if isinstance(text, Marked) else ""
    return f"<td{kind}>{html.escape(text)}</td>"
