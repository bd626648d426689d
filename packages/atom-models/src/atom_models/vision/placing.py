"""Prompts with pictures, for models that run without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from atom_models.paged_run import SequenceStep
from atom_models.vision.positions import places_of_embeddings, threefold_positions, widened
from atom_models.vision.seen import SeenRows
from atom_models.vision.sees import Sees


def place_pictures(
    model: nn.Module, prompts: Sequence[Sequence[int]], pictures: Sequence[Sequence[torch.Tensor]]
) -> list[SequenceStep]:
    """The whole of each prompt as a step, without blocks, with its pictures in the place of its image tokens.

    Args:
        pictures: those of each prompt, uint8 ``[height, width, 3]``; all are encoded as one batch.

    Raises:
        ValueError: the model takes no pictures; one has a wrong shape; a prompt has another number of image tokens.
    """
    if not isinstance(model, Sees) or model.vision is None or model.vision_spec is None:
        raise ValueError("the model takes no pictures: leave images out")
    if len(pictures) != len(prompts):
        raise ValueError(f"there are {len(prompts)} sequences, and images of {len(pictures)}")
    spec, encoded = model.vision_spec, iter(model.vision.encode([one for each in pictures for one in each]))
    steps = []
    for token_ids, own in zip(prompts, pictures, strict=True):
        sizes = [(one.shape[0], one.shape[1]) for one in own]
        tokens, firsts = widened(token_ids, sizes, spec)
        features = [next(encoded) for _ in own]
        positions = seen = None
        if own:
            rows = [
                torch.from_numpy(first + places_of_embeddings(*size, spec))
                for first, size in zip(firsts, sizes, strict=True)
            ]
            seen = SeenRows(torch.cat(rows).to(features[0].device), torch.cat(features))
        if own and spec.has_threefold_positions:
            placed = [(first, *size) for first, size in zip(firsts, sizes, strict=True)]
            positions = torch.from_numpy(threefold_positions(tokens, placed, spec)[0])
        steps.append(SequenceStep(tokens, 0, (), positions=positions, seen=seen))
    return steps
