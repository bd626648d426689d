"""Where pictures stand in prompts, and the positions of their tokens in time, height and width. Torch-free.

Wang et al. 2024, "Qwen2-VL", https://arxiv.org/abs/2409.12191, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atom_models.vision.spec import VisionSpec


def threefold_positions(
    token_ids: Sequence[int], pictures: Sequence[tuple[int, int, int]], spec: VisionSpec
) -> tuple[NDArray[np.int64], int]:
    """Positions of a prompt's tokens: one in time, height and width each, and equal ones where there is text.

    A picture's tokens have one time; text goes on behind the largest position before it.

    Args:
        token_ids: the prompt, with a token for each embedding of its pictures.
        pictures: (first token, height, width in pixels) of each, in the order of the prompt.

    Returns:
        int64 ``[3, tokens]``, and the delta: a token behind the prompt, at index i, has three times position i + delta.
    """
    positions = np.empty((3, len(token_ids)), dtype=np.int64)
    place = position = 0
    for first, height, width in pictures:
        position = _number_text(positions[:, place:first], position)
        rows, columns = height // spec.unit, width // spec.unit
        place = first + rows * columns
        positions[0, first:place] = position
        positions[1:, first:place] = position + np.indices((rows, columns)).reshape(2, -1)
        position += max(rows, columns)
    position = _number_text(positions[:, place:], position)
    return positions, position - len(token_ids)


def _number_text(part: NDArray[np.int64], position: int) -> int:
    part[:] = np.arange(position, position + part.shape[1])
    return position + part.shape[1]


def places_of_embeddings(height: int, width: int, spec: VisionSpec) -> NDArray[np.int64]:
    """Int64 ``[embeddings]``: their places among the tokens of a picture, between whose rows others may stand."""
    rows, columns = height // spec.unit, width // spec.unit
    return (np.arange(rows)[:, None] * (spec.num_tokens(height, width) // rows) + np.arange(columns)).ravel()


def widened(
    token_ids: Sequence[int], sizes: Sequence[tuple[int, int]], spec: VisionSpec
) -> tuple[list[int], list[int]]:
    """A prompt with all tokens of each picture, in the place of one.

    Args:
        sizes: (height, width in pixels) of each picture, in the order of the prompt.

    Returns:
        The tokens, and the first one of each picture.

    Raises:
        ValueError: there is another number of image tokens than of pictures.
    """
    count = sum(token == spec.image_token_id for token in token_ids)
    if count != len(sizes):
        raise ValueError(
            f"the prompt has {count} image tokens ({spec.image_token_id}), and there are {len(sizes)} pictures: each "
            "picture stands in the place of one"
        )
    tokens: list[int] = []
    firsts: list[int] = []
    left = iter(sizes)
    for token in token_ids:
        if token == spec.image_token_id:
            firsts.append(len(tokens))
            tokens += spec.tokens_of(*next(left))
        else:
            tokens.append(token)
    return tokens, firsts
