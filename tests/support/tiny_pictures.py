"""Random pictures, and prompts with them, for tests of models that see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from atom_models.vision.positions import widened
from atom_models.vision.spec import VisionSpec

SPEC = VisionSpec(0, 382, 383, 4, 2, 64, 6400, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGE = (SPEC.start_token_id, SPEC.image_token_id, SPEC.end_token_id)


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 ``[height, width, 3]``: a smooth part and noise."""
    drawn = np.random.default_rng(seed + height * 1000 + width)
    slope = np.linspace(0, 200, width)[None, :, None] * np.linspace(0.2, 1, height)[:, None, None]
    return torch.from_numpy((slope + drawn.integers(0, 56, (height, width, 3))).astype(np.uint8))


def pixel_values(model: Any, pictures: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What transformers' processors make of pictures."""
    size = SPEC.patch_size
    grids = torch.tensor([[1, one.shape[0] // size, one.shape[1] // size] for one in pictures])
    return {"pixel_values": processor(model.vision_spec)(list(map(np.asarray, pictures))), "image_grid_thw": grids}


def processor(spec: VisionSpec) -> Any:
    """``pictures [H, W, 3] -> pixel values``, by transformers with Pillow."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    made = Qwen2VLImageProcessorPil(
        patch_size=spec.patch_size,
        merge_size=spec.merge_size,
        min_pixels=spec.min_pixels,
        max_pixels=spec.max_pixels,
        image_mean=list(spec.mean),
        image_std=list(spec.std),
    )
    return lambda pictures: made(pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]


@torch.inference_mode()
def their_logits(theirs: Any, model: Any, tokens: Sequence[int], pictures: Sequence[torch.Tensor]) -> torch.Tensor:
    """transformers' logits of a prompt with one image token for each picture; those of the widened prompt."""
    spec = model.vision_spec
    wide, _ = widened(tokens, [(one.shape[0], one.shape[1]) for one in pictures], spec)
    ids = torch.tensor([wide])
    if not pictures:
        return theirs(input_ids=ids).logits[0]
    are_seen = (ids == spec.image_token_id).int()
    return theirs(input_ids=ids, mm_token_type_ids=are_seen, **pixel_values(model, pictures)).logits[0]
