"""How tiny models see videos, and what transformers' processors make of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import KIMI as KIMI
from atom_models.vision.videos import QWEN2 as QWEN2
from atom_models.vision.videos import QWEN3 as QWEN3
from atom_models.vision.videos import VideoDefaults, VideoSpec
from tiny_pictures import moonvit_patches


def video_spec(token_id: int, defaults: VideoDefaults, **changed: Any) -> VideoSpec:
    """How a family sees videos, two frames at once unless `changed` says otherwise."""
    return VideoSpec(**{"token_id": token_id, "picture_frames": 2} | asdict(defaults) | changed)


def paired(frames: torch.Tensor) -> torch.Tensor:
    """``[frames, ...]`` -> ``[pictures, 2, ...]``: the last frame stands twice where one is missing."""
    whole = torch.cat([frames, frames[-1:]]) if len(frames) % 2 else frames
    return whole.unflatten(0, (-1, 2))


def patches(spec: VisionSpec, videos: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Videos uint8 ``[frames, height, width, 3]`` -> pixel values, square by square, and grids ``[videos, 3]``."""
    found, grids = [], []
    for frames in videos:
        pairs = paired(frames).permute(0, 1, 4, 2, 3).float() / 255
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (spec.mean, spec.std))
        count, _, _, height, width = pairs.shape
        size, rows, columns = spec.patch_size, height // spec.unit, width // spec.unit
        cut = ((pairs - mean) / std).view(count, 2, 3, rows, 2, size, columns, 2, size)
        found.append(cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 6 * size**2))
        grids.append([count, height // size, width // size])
    return torch.cat(found), torch.tensor(grids)


@torch.inference_mode()
def embeddings_of_kimi(
    theirs: Any, token_ids: Sequence[int], pictures: Sequence[torch.Tensor], spec: VisionSpec
) -> torch.Tensor:
    """What the language model of `transformers` takes for a prompt of Kimi-K2.5: ``[1, T, D]``.

    The tower and the projector are called by themselves, as transformers 5.23 fails with frames (it splits what they
    give by all frames of a chunk, of which the mean was taken).

    Args:
        token_ids: the prompt, in which a picture has all of its tokens.
        pictures: uint8 ``[height, width, 3]``, or ``[frames, height, width, 3]``, in order.
    """
    ids, size, features = torch.tensor([token_ids]), spec.patch_size, []
    for one in pictures:
        frames = one if one.dim() == 4 else one[None]
        grid = torch.tensor([[len(frames), frames.shape[1] // size, frames.shape[2] // size]])
        pooled = theirs.model.vision_tower(moonvit_patches(spec, list(frames.numpy())), grid_thw=grid).pooler_output
        features.append(theirs.model.mm_projector(pooled).squeeze(1))
    embeddings = theirs.get_input_embeddings()(ids)
    if not features:
        return embeddings
    return embeddings.masked_scatter((ids == spec.image_token_id).unsqueeze(-1), torch.cat(features))
