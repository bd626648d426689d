"""`TextPadding`: to which length texts are filled up, where a model was trained so. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TextPadding:
    """Attributes:
    length: tokens of every text.
    token_id: what it is filled up with.
    """

    length: int
    token_id: int

    def padded(self, token_ids: Sequence[int]) -> list[int]:
        """A text of that length; longer ones stay as they are."""
        return [*token_ids, *[self.token_id] * (self.length - len(token_ids))]


def padding_token(folder: Path) -> int | None:
    """The token with which a folder's tokenizer pads; None where its files do not say."""
    from atom_models.vision.fields import added_token

    try:
        named: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["pad_token"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    text = named.get("content") if isinstance(named, dict) else named
    return added_token(folder, text) if isinstance(text, str) else None
