"""Pictures of one call of a tower, as one ragged batch of patches.

T: patches of all pictures, one after the other. Within a picture the patches of a square that becomes one token follow
each other, square by square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from atom_models.vision.spec import VisionSpec


@dataclass(frozen=True)
class PictureBatch:
    """Where the patches of a batch lie.

    Attributes:
        grids: (rows, columns) of patches of each picture.
        merge_size: patches on each side of a square that becomes one token.
        device: where tensors are made.
        frames: how many frames each picture has that are seen at once, and become the tokens of one; empty is one each.
    """

    grids: tuple[tuple[int, int], ...]
    merge_size: int
    device: torch.device
    frames: tuple[int, ...] = ()

    @classmethod
    def of(cls, pictures: Sequence[torch.Tensor], spec: VisionSpec, device: torch.device) -> PictureBatch:
        """The batch of pictures ``[height, width, 3]``, or of a video ``[frames, height, width, 3]``.

        Raises:
            ValueError: one has sides that are not multiples of the unit, or another number of frames than a patch.
        """
        video = spec.video
        for picture in pictures:
            *frames, height, width, colors = picture.shape
            if frames and (video is None or len(frames) > 1 or not video.takes(frames[0])):
                most = "none" if video is None else video.picture_frames
                raise ValueError(f"a picture of a video is {list(picture.shape)}; the model sees {most} frames at once")
            if height % spec.unit or width % spec.unit or colors != 3 or picture.dtype is not torch.uint8:
                raise ValueError(
                    f"a picture is {picture.dtype} {list(picture.shape)}; it must be uint8 [height, width, 3], both "
                    f"sides multiples of {spec.unit}: resize it to VisionSpec.fitted(height, width)"
                )
        size = spec.patch_size
        grids = tuple((picture.shape[-3] // size, picture.shape[-2] // size) for picture in pictures)
        depths = tuple(spec.depth(1 if picture.dim() == 3 else len(picture)) for picture in pictures)
        return cls(grids, spec.merge_size, device, depths if max(depths, default=1) > 1 else ())

    @property
    def lengths(self) -> list[int]:
        """Patches of each picture."""
        areas = [rows * columns for rows, columns in self.grids]
        return [area * count for area, count in zip(areas, self.frames, strict=True)] if self.frames else areas

    @property
    def num_tokens(self) -> list[int]:
        """Tokens of each picture."""
        return [rows * columns // self.merge_size**2 for rows, columns in self.grids]

    @cached_property
    def rows_and_columns(self) -> torch.Tensor:
        """int64 ``[T, 2]``: the row and the column of each patch in its picture."""
        counts = self.frames or (1,) * len(self.grids)
        return torch.cat(
            [self._in_squares(*grid).repeat(count, 1) for grid, count in zip(self.grids, counts, strict=True)]
        )

    def sizes(self, axis: int) -> torch.Tensor:
        """int64 ``[T]``: how many rows (axis 0) or columns (1) the picture of each patch has."""
        sizes = torch.tensor([grid[axis] for grid in self.grids], device=self.device)
        lengths = torch.tensor(self.lengths, device=self.device)
        return sizes.repeat_interleave(lengths, output_size=sum(self.lengths))

    def windows(self, side: int) -> tuple[torch.Tensor, list[int]]:
        """The pictures' tokens window by window, row by row of each; windows have `side` rows and columns of tokens.

        Returns:
            int64 ``[tokens]``: the token that stands at each place, and the patches of each window.
        """
        orders: list[torch.Tensor] = []
        lengths: list[int] = []
        first = 0
        for rows, columns in self.grids:
            down, across = (torch.arange(count // self.merge_size) // side for count in (rows, columns))
            window = (down.unsqueeze(1) * (int(across[-1]) + 1) + across).flatten()
            orders.append(first + window.argsort(stable=True))
            lengths += (window.bincount() * self.merge_size**2).tolist()
            first += len(window)
        return torch.cat(orders).to(self.device), lengths

    def by_tokens(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Rows of patches ``[T, n]``, token by token in another order."""
        return x.view(len(order), -1)[order].view(x.shape)

    def by_frames(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Rows of patches ``[T, n]`` -> ``[frames, patches of one, n]`` of each picture."""
        counts = self.frames or (1,) * len(self.grids)
        parts = zip(x.split(self.lengths), counts, strict=True)
        return [part.unflatten(0, (count, -1)) for part, count in parts]

    def _in_squares(self, rows: int, columns: int) -> torch.Tensor:
        side = self.merge_size
        places = torch.cartesian_prod(torch.arange(rows, device=self.device), torch.arange(columns, device=self.device))
        squares = places.view(rows // side, side, columns // side, side, 2)
        return squares.transpose(1, 2).reshape(-1, 2)


def angles(batch: PictureBatch, head_dim: int, theta: float) -> torch.Tensor:
    """The table of a rotation by two positions, float32 ``[T, head_dim]``, cosines first: one row for each patch.

    The first half of the frequencies turns by the row, the second by the column.
    """
    steps = torch.arange(0, head_dim // 2, 2, device=batch.device, dtype=torch.float32) / (head_dim // 2)
    return as_table((batch.rows_and_columns.unsqueeze(-1) * theta**-steps).flatten(1))


def as_table(turned: torch.Tensor) -> torch.Tensor:
    """Angles ``[T, head_dim / 2]`` -> the table of a rotation by them, ``[T, head_dim]``."""
    return torch.cat((turned.cos(), turned.sin()), dim=1)
