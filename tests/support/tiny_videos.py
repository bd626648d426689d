"""How tiny models see videos, and what transformers' processors make of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import QWEN2 as QWEN2
from atom_models.vision.videos import QWEN3 as QWEN3
from atom_models.vision.videos import VideoDefaults, VideoSpec


def video_spec(token_id: int, defaults: VideoDefaults, **changed: Any) -> VideoSpec:
    """How a family sees videos, two frames at once."""
    return VideoSpec(token_id=token_id, picture_frames=2, **asdict(defaults) | changed)


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
