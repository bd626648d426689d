"""`GivenPrompt`: a prompt as programs write it: text or token ids, and maybe pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom_core.engine.inputs.fitted_images import as_image
from atom_core.engine.inputs.placed_images import NAME
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image
from atom_models.vision.spec import VisionSpec

GivenText = str | Sequence[int]
Given = GivenText | Mapping[str, Any]
"""Text, token ids, or a mapping of ``prompt`` (text) or ``prompt_token_ids``, and ``images``: see `as_image`."""

_TEXTS = ("prompt", "prompt_token_ids")


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt with one image token for each of its pictures, which are fitted."""

    text: GivenText
    images: Sequence[Image] = ()

    @classmethod
    def of(cls, given: Given, spec: VisionSpec | None) -> GivenPrompt:
        """What was given.

        Args:
            spec: which pictures the model sees.

        Raises:
            InvalidRequestError: a mapping has other keys, or a picture is none; the model sees none.
        """
        if not isinstance(given, Mapping):
            return cls(given)
        texts = [name for name in _TEXTS if name in given]
        if len(texts) != 1 or not given.keys() <= {*_TEXTS, NAME}:
            raise InvalidRequestError(
                f"a prompt has the keys {', '.join(map(repr, given))}; it must have 'prompt' or 'prompt_token_ids', "
                f"and may have '{NAME}'",
                "prompt",
            )
        pictures = given.get(NAME) or ()
        if pictures and spec is None:
            raise InvalidRequestError(
                f"a prompt has {len(pictures)} pictures, and this model reads text alone: leave them out", NAME
            )
        return cls(given[texts[0]], [as_image(picture, spec) for picture in pictures] if spec is not None else ())
