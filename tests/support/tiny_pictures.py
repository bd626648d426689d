"""Random pictures, and prompts with them, for tests of models that see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from atom_models.vision.positions import widened
from atom_models.vision.spec import VisionSpec

SPEC = VisionSpec(0, 382, 383, 4, 2, 64, 6400, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGE = (382, 0, 383)


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 ``[height, width, 3]``: a smooth part and noise."""
    drawn = np.random.default_rng(seed + height * 1000 + width)
    slope = np.linspace(0, 200, width)[None, :, None] * np.linspace(0.2, 1, height)[:, None, None]
    return torch.from_numpy((slope + drawn.integers(0, 56, (height, width, 3))).astype(np.uint8))


def pixel_values(model: Any, pictures: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What transformers' processors make of pictures that have been fitted."""
    spec, arrays = model.vision_spec, list(map(np.asarray, pictures))
    sizes = torch.tensor([one.shape[:2] for one in arrays])
    if spec.resizing == "fixed":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        made = Gemma3ImageProcessorPil(size={"height": spec.max_side, "width": spec.max_side})
        return {"pixel_values": made(arrays, return_tensors="pt", input_data_format="channels_last")["pixel_values"]}
    if spec.resizing == "shrunk":
        made = pixtral_processor(spec)(arrays)
        assert made["image_sizes"].tolist() == sizes.tolist()
        return {"pixel_values": made["pixel_values"], "image_sizes": sizes}
    patches = moonvit_patches(spec, arrays) if spec.resizing == "padded" else processor(spec)(arrays)
    grids = torch.cat([torch.ones(len(sizes), 1, dtype=torch.int64), sizes // spec.patch_size], dim=1)
    return {"pixel_values": patches, "image_grid_thw": grids}


def pixtral_processor(spec: VisionSpec) -> Any:
    """``pictures [H, W, 3] -> pixel values and sizes``, by transformers with Pillow."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    made = PixtralImageProcessorPil(
        patch_size={"height": spec.unit, "width": spec.unit},
        size={"longest_edge": spec.max_side},
        image_mean=list(spec.mean),
        image_std=list(spec.std),
    )
    return lambda pictures: made(pictures, return_tensors="pt", input_data_format="channels_last")


def moonvit_patches(spec: VisionSpec, pictures: Sequence[np.ndarray]) -> torch.Tensor:
    """Patches ``[patches, 3, patch_size, patch_size]`` of pictures row by row, as Kimi-K2.5's processor makes them."""
    size, found = spec.patch_size, []
    for one in pictures:
        normed = (torch.from_numpy(one.copy()).float() / 255 - torch.tensor(spec.mean)) / torch.tensor(spec.std)
        rows = normed.permute(2, 0, 1).unfold(1, size, size).unfold(2, size, size)
        found.append(rows.permute(1, 2, 0, 3, 4).flatten(0, 1))
    return torch.cat(found)


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
    are_pictures, are_seen = (ids == spec.image_token_id).int(), {}
    if spec.has_threefold_positions or spec.sees_ahead:
        are_seen = {"token_type_ids" if spec.sees_ahead else "mm_token_type_ids": are_pictures}
    return theirs(input_ids=ids, **are_seen, **pixel_values(model, pictures)).logits[0]
