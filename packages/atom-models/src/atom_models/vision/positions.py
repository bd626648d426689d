"""Where pictures stand in prompts, and the positions of their tokens in time, height and width. Torch-free.

Wang et al. 2024, "Qwen2-VL", https://arxiv.org/abs/2409.12191, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atom_models.vision.spec import VisionSpec


def threefold_positions(
    token_ids: Sequence[int],
    pictures: Sequence[tuple[int, int, int] | tuple[int, int, int, int | None]],
    spec: VisionSpec,
) -> tuple[NDArray[np.int64], int]:
    """Positions of a prompt's tokens: one in time, height and width each, and equal ones where there is text.

    A picture's tokens have one time; text goes on behind the largest position before it. Pictures of a video that has
    no texts between them begin at one position, each so many steps in time behind the first.

    Args:
        token_ids: the prompt, with a token for each embedding of its pictures.
        pictures: (first token, height, width in pixels) of each, in the order of the prompt; and its steps in time
            behind the first picture of its video, where it goes on one (`VideoSpec.lags`).

    Returns:
        int64 ``[3, tokens]``, and the delta: a token behind the prompt, at index i, has three times position i + delta.

    Raises:
        ValueError: a picture goes on a video that does not end where it begins.
    """
    positions = np.empty((3, len(token_ids)), dtype=np.int64)
    place = position = start = 0
    for first, height, width, *rest in pictures:
        lag = rest[0] if rest else None
        if lag is None:
            start = position = _number_text(positions[:, place:first], position)
        elif first != place:
            raise ValueError(f"the picture at token {first} goes on a video, and does not follow its picture before")
        rows, columns = height // spec.unit, width // spec.unit
        place = first + rows * columns
        positions[0, first:place] = start + (lag or 0)
        positions[1:, first:place] = start + np.indices((rows, columns)).reshape(2, -1)
        position = max(position, start + max(rows, columns, 1 + (lag or 0)))
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

    Pictures of a video stand in the places of its own token: one for each of these pictures.

    Args:
        sizes: (height, width in pixels) of each picture, in the order of the prompt.

    Returns:
        The tokens, and the first one of each picture.

    Raises:
        ValueError: there is another number of image tokens than of pictures.
    """
    placeholders = spec.placeholders
    count = sum(token in placeholders for token in token_ids)
    if count != len(sizes):
        raise ValueError(
            f"the prompt has {count} image tokens ({', '.join(map(str, placeholders))}), and there are {len(sizes)} "
            "pictures: each picture stands in the place of one"
        )
    tokens: list[int] = []
    firsts: list[int] = []
    left = iter(sizes)
    for token in token_ids:
        if token in placeholders:
            size = next(left)
            firsts.append(len(tokens))
            if token == spec.image_token_id:
                tokens += spec.tokens_of(*size)
            else:
                tokens += [token] * spec.num_tokens(*size)
        else:
            tokens.append(token)
    return tokens, firsts


def last_seen(first: int, count: int, spans: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """The last token that each of `count` tokens from `first` on sees behind itself: of a picture, its last one.

    Args:
        spans: the first token of each picture of a prompt, and the one behind its last.

    Returns:
        int32 ``[count]``, -1 where a token sees up to itself (`BatchGeometry.sees_until`).

    Raises:
        ValueError: the tokens end within a picture, whose last ones they would have to see.
    """
    found = np.full(count, -1, dtype=np.int32)
    for begin, end in spans:
        if begin < first + count < end:
            raise ValueError(
                f"a step ends before token {first + count}, inside a picture of the tokens {begin} to {end - 1}, "
                "which see each other: it has to have all of them, or none"
            )
        found[max(begin - first, 0) : max(end - first, 0)] = end - 1
    return found
