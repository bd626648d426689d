"""Prompts with pictures, for models that run without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from atom_models.paged_run import SequenceStep
from atom_models.vision.positions import last_seen, places_of_embeddings, threefold_positions, widened
from atom_models.vision.seen import SeenRows
from atom_models.vision.sees import tower_of


class LatePicture(NamedTuple):
    """A picture uint8 ``[frames, height, width, 3]`` that goes on the video before it, see `VideoSpec.lags`."""

    frames: torch.Tensor
    lag: int


def place_pictures(
    model: nn.Module, prompts: Sequence[Sequence[int]], pictures: Sequence[Sequence[torch.Tensor | LatePicture]]
) -> list[SequenceStep]:
    """The whole of each prompt as a step, without blocks, with its pictures in the place of its image tokens.

    Args:
        pictures: the pictures of each prompt, uint8 ``[height, width, 3]``, and the frames of videos,
            ``[frames, height, width, 3]``; all are encoded as one batch.

    Raises:
        ValueError: the model takes no pictures; one has a wrong shape; a prompt has another number of image tokens.
    """
    tower = tower_of(model)
    if tower is None:
        raise ValueError("the model takes no pictures: leave images out")
    if len(pictures) != len(prompts):
        raise ValueError(f"there are {len(prompts)} sequences, and images of {len(pictures)}")
    spec, shown = tower.spec, [[_frames(one) for one in own] for own in pictures]
    encoded = iter(tower.encode([one for each in shown for one in each]))
    steps = []
    for token_ids, own in zip(prompts, pictures, strict=True):
        sizes = [(one.shape[-3], one.shape[-2]) for one in map(_frames, own)]
        tokens, firsts = widened(token_ids, sizes, spec)
        features = [next(encoded) for _ in own]
        positions = seen = sees_until = None
        if own:
            rows = [
                torch.from_numpy(first + places_of_embeddings(*size, spec))
                for first, size in zip(firsts, sizes, strict=True)
            ]
            seen = SeenRows(torch.cat(rows).to(features[0].device), torch.cat(features))
        if own and spec.has_threefold_positions:
            lags = [one.lag if isinstance(one, LatePicture) else None for one in own]
            placed = [(first, *size, lag) for first, size, lag in zip(firsts, sizes, lags, strict=True)]
            positions = torch.from_numpy(threefold_positions(tokens, placed, spec)[0])
        if own and spec.sees_ahead:
            spans = [(first, first + spec.num_tokens(*size)) for first, size in zip(firsts, sizes, strict=True)]
            sees_until = torch.from_numpy(last_seen(0, len(tokens), spans))
        steps.append(SequenceStep(tokens, 0, (), positions=positions, seen=seen, sees_until=sees_until))
    return steps


def _frames(picture: torch.Tensor | LatePicture) -> torch.Tensor:
    return picture.frames if isinstance(picture, LatePicture) else picture
