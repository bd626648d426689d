"""Prompts of one length, with a picture that is new, with one that was seen before, or of text alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Tokens below this number are words, or those from it on where marks of pictures are below.
_WORDS = 100
NEW, AGAIN, TEXT = "a new picture", "a picture seen before", "as many tokens of text"


@dataclass(frozen=True)
class Marks:
    """Tokens of a vocabulary that stand around a picture and for it; None where none stands before or behind it."""

    start_token_id: int | None
    image_token_id: int
    end_token_id: int | None

    @property
    def token_ids(self) -> list[int]:
        """A picture in a prompt, with a word behind it where no mark is: some token must follow."""
        before = [] if self.start_token_id is None else [self.start_token_id]
        return [*before, self.image_token_id, _WORDS if self.end_token_id is None else self.end_token_id]


class PicturePrompt(NamedTuple):
    """A prompt in which one token stands for the picture.

    Attributes:
        pixels: uint8 ``[height, width, 3]``; None of text alone.
    """

    token_ids: list[int]
    pixels: NDArray[np.uint8] | None = None

    def as_ours(self) -> dict[str, Any]:
        """As `LLMEngine` takes it."""
        from atom_core.messages import Image

        prompt: dict[str, Any] = {"prompt_token_ids": self.token_ids}
        if self.pixels is not None:
            height, width, _ = self.pixels.shape
            prompt["images"] = [Image.of(height, width, self.pixels.tobytes())]
        return prompt

    def as_of_vllm(self) -> dict[str, Any]:
        """As `vllm.LLM` takes it."""
        from PIL import Image

        prompt: dict[str, Any] = {"prompt_token_ids": self.token_ids}
        if self.pixels is not None:
            prompt["multi_modal_data"] = {"image": Image.fromarray(self.pixels)}
        return prompt


class PicturePrompts:
    """Prompts with other text each: no KV cache has any of them.

    Attributes:
        num_tokens: how many each prompt has, once a picture's tokens are there.
    """

    def __init__(self, marks: Marks, *, size: tuple[int, int], num_picture_tokens: int, num_text: int) -> None:
        self._marks, self._size, self._num_text = marks.token_ids, size, num_text
        self.num_tokens = num_text + len(self._marks) - 1 + num_picture_tokens
        self._random, self._pixels = random.Random(1), np.random.default_rng(1)
        self._seen = self._picture()

    @classmethod
    def of_config(cls, config: Mapping[str, Any], *, side: int, num_text: int) -> PicturePrompts:
        """For a model of a family of Qwen's that takes pictures of ``side`` x ``side`` pixels as they are."""
        vision = config["vision_config"]
        tokens_of_side = side // (vision["patch_size"] * vision["spatial_merge_size"])
        marks = Marks(*(config[name] for name in ("vision_start_token_id", "image_token_id", "vision_end_token_id")))
        return cls(marks, size=(side, side), num_picture_tokens=tokens_of_side**2, num_text=num_text)

    def new(self) -> PicturePrompt:
        """With pixels that no prompt had before."""
        return self._with(self._picture())

    def again(self) -> PicturePrompt:
        """With the picture of the prompt before of this kind."""
        return self._with(self._seen)

    def text(self) -> PicturePrompt:
        """Without a picture."""
        return PicturePrompt(self._words(self.num_tokens))

    def _with(self, pixels: NDArray[np.uint8]) -> PicturePrompt:
        return PicturePrompt([*self._words(self._num_text), *self._marks], pixels)

    def _picture(self) -> NDArray[np.uint8]:
        return self._pixels.integers(0, 256, (*self._size, 3), dtype=np.uint8)

    def _words(self, count: int) -> list[int]:
        # Marks have the last numbers of a vocabulary, or some of the first.
        least = min(self._marks)
        first, end = (0, least) if least > _WORDS else (_WORDS, 2 * _WORDS)
        return [self._random.randrange(first, end) for _ in range(count)]
