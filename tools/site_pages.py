"""Makes the pages of docs/ ready for the site: a hook of mkdocs, which mkdocs.yml names."""

from __future__ import annotations

import re
from typing import Any

# "python no-run" tells the tests what to do with a block; to mkdocs it would be no block at all.
_MARKED_FENCE = re.compile(r"^```(\w+) [\w-]+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page, whose blocks name their language alone."""
    return _MARKED_FENCE.sub(r"```\1", markdown)
