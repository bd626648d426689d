"""`VisionTower`: from pictures to embeddings of the language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from atom_kernels.mixers import MixerPlan
from atom_models.build_context import BuildContext
from atom_models.config.reading import read_config
from atom_models.groups import UNSHARED
from atom_models.vision.batch import PictureBatch
from atom_models.vision.reading import Vision
from atom_models.vision.towers.step import TowerStep

RunLayers = Callable[[TowerStep], torch.Tensor]
"""As `VisionTower.run`."""


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Fields of `vision_config` that all towers have, under their Hugging Face names."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch_size: int
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    hidden_act: str
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)

    # Sizes that others repeat, and what videos alone have.
    unread: ClassVar[tuple[str, ...]] = ("in_chans", "spatial_patch_size", "tokens_per_second")
    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"in_channels": (3,), "in_chans": (3,)}

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads or self.head_size % 4:
            raise ValueError(
                f"vision_config: hidden_size is {self.hidden_size} and num_heads {self.num_heads}; each head needs a "
                "multiple of 4 elements: half of them turn by the row and half by the column"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def rope_theta(self) -> float:
        return float(self.rope_parameters.get("rope_theta", 10_000.0))

    @property
    def merged_size(self) -> int:
        """Elements of the patches that become one token."""
        return self.hidden_size * self.spatial_merge_size**2


class VisionTower(nn.Module):
    """Encodes pictures; every rank has the whole of it.

    `begin` makes a step of pictures, `run` is all that their layers do, and `end` what is left: a graph may hold `run`,
    which reads nothing but the tensors of its step.

    Attributes:
        plan: the kernel of attention.
        rows_of_unit: a step has so many rows, or a multiple of it.
        width: elements of a token: the hidden size of the language model, times one for the embedding and one for each
            of its layers behind which something is added.
    """

    config_class: ClassVar[type[Any]]
    plan: MixerPlan

    def __init__(self, vision: Vision, context: BuildContext) -> None:
        super().__init__()
        self.spec, self.config = vision.spec, read_config(type(self).config_class, vision.config)
        self.width: int = self.config.out_hidden_size
        self.rows_of_unit: int = self.config.spatial_merge_size**2
        self._device = torch.device(context.device)

    def encode(self, pictures: Sequence[torch.Tensor], run: RunLayers | None = None) -> list[torch.Tensor]:
        """Features ``[tokens, width]`` of each picture, a row of tokens after the other; all run as one batch.

        Args:
            pictures: uint8 ``[height, width, 3]``, or of a video ``[frames, height, width, 3]``, on any device, of
                sizes that `VisionSpec.fitted` gives.
            run: does what `run` does.

        Raises:
            ValueError: one has another shape or dtype.
        """
        if not pictures:
            return []
        batch = PictureBatch.of(pictures, self.spec, self._device)
        with torch.inference_mode():
            step = self.begin([picture.to(self._device) for picture in pictures], batch)
            features = self.end((run or self.run)(step), batch)
        return list(features.split(batch.num_tokens))

    def encode_patches(self, patches: torch.Tensor, grids: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """As `encode`, of pictures that another engine's processor has cut and normed.

        Args:
            patches: ``[T, ...]`` of all pictures, colors before frames, see `PictureBatch` for their order.
            grids: (frames that are seen at once, rows, columns) of patches of each picture.

        Raises:
            ValueError: there is another number of patches than `grids` says.
        """
        frames, sides = tuple(count for count, *_ in grids), tuple((rows, columns) for _, rows, columns in grids)
        batch = PictureBatch(sides, self.spec.merge_size, self._device, frames)
        if len(patches) != sum(batch.lengths):
            raise ValueError(f"there are {len(patches)} patches, and pictures of {sum(batch.lengths)}")
        with torch.inference_mode():
            features = self.end(self.run(self.begin(patches.to(self._device), batch)), batch)
        return list(features.split(batch.num_tokens))

    @property
    def capturable(self) -> bool:
        """Whether a graph can hold `run`."""
        return self.plan.capturable

    def smallest_step(self) -> TowerStep:
        """That of a black picture, as small as pictures are."""
        height, width = self.spec.fitted(1, 1)
        picture = torch.zeros(height, width, 3, dtype=torch.uint8, device=self._device)
        with torch.inference_mode():
            return self.begin([picture], PictureBatch.of([picture], self.spec, self._device))

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        """Embed pictures, which are as `PatchEmbedding` takes them."""
        raise NotImplementedError

    def run(self, step: TowerStep) -> torch.Tensor:
        """``[n, ...]``, where n is T or an even part of it."""
        raise NotImplementedError

    def end(self, features: torch.Tensor, batch: PictureBatch) -> torch.Tensor:
        """What `run` gave, as ``[tokens of all pictures, width]``."""
        return features


def unshared(context: BuildContext) -> BuildContext:
    """How a tower is built: whole on each rank, and without adapters."""
    return replace(context, groups=UNSHARED, takes_adapters=False)
