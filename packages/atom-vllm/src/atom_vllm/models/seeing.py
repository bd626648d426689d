"""Our models that see, as vLLM wants models: its processor cuts pictures into patches, and our tower encodes them.

vLLM encodes a picture once, keeps its features, and merges those of the tokens of each step into their embeddings: so
chunks may end inside a picture, and tokens found in the prefix cache need none.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal

from atom_models.vision.positions import threefold_positions
from atom_vllm import compat
from atom_vllm.models.added_rows import AddedRows
from atom_vllm.models.model_wrapper import ATOMModelBase

# What vLLM's processors call (time, rows, columns) of pictures' patches -> and the patches.
_PATCHES = {"image_grid_thw": "pixel_values", "video_grid_thw": "pixel_values_videos"}


class ATOMForConditionalGeneration(ATOMModelBase, SupportsMultiModal, SupportsMRoPE):
    """Models that take pictures and videos; of text alone where the user lets prompts have none."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._added = AddedRows(self.model, vllm_config)

    @staticmethod
    def is_text_alone(vllm_config: Any) -> bool:
        return not compat.takes_pictures(vllm_config.model_config)

    def embed_multimodal(self, **inputs: torch.Tensor) -> list[torch.Tensor]:
        """Features ``[tokens, width of the tower]`` of each picture and video, in the order of `inputs`."""
        if (chunks := inputs.get("grid_thws")) is not None:
            return self._encode_chunks(inputs["pixel_values"], chunks.tolist())
        found = ((inputs[_PATCHES[name]], grids.tolist()) for name, grids in inputs.items() if name in _PATCHES)
        return [one for patches, grids in found for one in self._encode(patches, grids)]

    def _encode(self, patches: torch.Tensor, grids: list[list[int]]) -> Iterator[torch.Tensor]:
        """A video of Qwen's is seen as pictures of two frames each, one after the other."""
        pictures = [(1, rows, columns) for time, rows, columns in grids for _ in range(time)]
        features = iter(self.model.vision.encode_patches(patches, pictures))
        return (torch.cat([next(features) for _ in range(time)]) for time, _, _ in grids)

    def _encode_chunks(self, patches: torch.Tensor, grids: list[list[int]]) -> list[torch.Tensor]:
        """A chunk of a video of Kimi's is seen at once. Patches come row by row, and our towers want squares."""
        side = self.model.vision_spec.merge_size
        parts = zip(patches.flatten(1).split([math.prod(grid) for grid in grids]), grids, strict=True)
        squares = [
            part.view(frames, rows // side, side, columns // side, side, -1).transpose(2, 3).flatten(0, 4)
            for part, (frames, rows, columns) in parts
        ]
        return self.model.vision.encode_patches(torch.cat(squares), [(one[0], one[1], one[2]) for one in grids])

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor] | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[T]`` -> ``[T, D]``, with features in the rows that `is_multimodal` ``[T]`` marks."""
        embeds = self.model.embed_input_ids(input_ids)
        self._added.clear()
        if not multimodal_embeddings or is_multimodal is None:
            return embeds
        features, marked = torch.cat(list(multimodal_embeddings)).to(embeds.dtype), is_multimodal.to(embeds.device)
        size = embeds.shape[1]
        self._added.put(features[:, size:], marked)
        return embeds.masked_scatter(marked.unsqueeze(1), features[:, :size])

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if positions.dim() == 2 and self.model.vision is None:
            positions = positions[0]  # those of text are three times the same
        added = None if inputs_embeds is None else self._added.of(inputs_embeds.shape[0])
        return self._decode(input_ids, positions, inputs_embeds, added)

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: Iterable[Any]
    ) -> tuple[torch.Tensor, int]:
        """See `threefold_positions`."""
        if self.model.vision is None:
            return torch.arange(len(input_tokens)).expand(3, -1), 0
        ordered = sorted(mm_features, key=lambda feature: feature.mm_position.offset)
        pictures = [place for feature in ordered for place in self._places(input_tokens, feature)]
        positions, delta = threefold_positions(input_tokens, pictures, self.model.vision_spec)
        return torch.from_numpy(positions), delta

    def _places(self, input_tokens: list[int], feature: Any) -> Iterator[tuple[int, int, int]]:
        """(first token, height, width in pixels) of a picture, or of each that a video is seen as."""
        spec, is_video = self.model.vision_spec, feature.modality == "video"
        token = spec.video.token_id if is_video else spec.image_token_id
        time, rows, columns = feature.data[f"{feature.modality}_grid_thw"].data.tolist()
        place, sides = feature.mm_position.offset, (rows * spec.patch_size, columns * spec.patch_size)
        for _ in range(time):
            place = input_tokens.index(token, place)
            yield place, *sides
            place += spec.num_tokens(*sides)
