"""`TowerGraphs`: layers of a tower, captured once for each of a few numbers of rows, and replayed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch

from atom_core.worker.graphs.cuda_capture import Capture, CaptureCost, Captured
from atom_models.vision.tower import RunLayers, VisionTower
from atom_models.vision.towers.step import TowerStep

logger = logging.getLogger(__name__)

# Rows of captured steps. More of them keep a device busy for longer than their launches take.
SIZES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096)
# A graph has room for a run of each so many rows, and for some at least.
ROWS_OF_RUN, LEAST_RUNS = 16, 16


def tower_sizes(tower: VisionTower, most_rows: int) -> tuple[int, ...]:
    """Rows of the steps that are captured: those of the smallest picture at least, and so many at most."""
    unit, spec = tower.rows_of_unit, tower.spec
    height, width = spec.fitted(1, 1)
    least_rows = (height // spec.unit) * (width // spec.unit) * unit
    sizes = {-(-size // unit) * unit for size in SIZES}
    return tuple(sorted(size for size in sizes if least_rows <= size <= most_rows))


class TowerGraphs:
    """Graphs over buffers that each call fills; all share their memory, since one runs at a time.

    Rows behind those of a step are shared out among the runs that it does not need.

    Args:
        tower: makes features of pictures.
        sizes: rows of the steps that are captured.
        capture: makes the graphs.
    """

    def __init__(self, tower: VisionTower, sizes: Sequence[int], capture: Capture) -> None:
        self._tower, self._sizes, self._capture = tower, sorted(sizes), capture
        self._captured: dict[int, Captured] = {}
        self._buffers: TowerStep | None = None
        self._cost = CaptureCost()

    def encode(self, pictures: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `VisionTower.encode`."""
        return self._tower.encode(pictures, self.run)

    def run(self, step: TowerStep) -> torch.Tensor:
        """As that of the tower."""
        size = self._size_of(step)
        if size is None:
            return self._tower.run(step)
        self._fill(step, size)
        self._captured[size].replay()
        features = self._captured[size].outputs[0]
        # Other graphs write over what this one gave.
        return features[: len(step.rows) * len(features) // size].clone()

    def capture_next(self) -> bool:
        """Capture the largest size that is left, since smaller ones fit into its memory; False where none is."""
        left = [size for size in self._sizes if size not in self._captured]
        if not left:
            return False
        with self._cost.count(), torch.inference_mode():
            self._fill(self._tower.smallest_step(), left[-1])
            captured = self._capture(partial(_run_views, self._tower.run, self._views(left[-1])))
        captured.share()
        self._captured[left[-1]] = captured
        if len(left) == 1:
            logger.info("captured a tower for %d numbers of patches in %s", len(self._sizes), self._cost.describe())
        return True

    def forget(self) -> None:
        """Let go of what was captured, and capture no more."""
        self._sizes, self._buffers = [], None
        self._captured.clear()

    def _size_of(self, step: TowerStep) -> int | None:
        """The smallest size that was captured and has room for a step; None where none has."""
        num_rows, num_runs = len(step.rows), max(len(starts) - 1 for starts in step.starts)
        fitting = [size for size in self._captured if size >= num_rows and _most_runs(size) >= num_runs]
        return min(fitting, default=None)

    def _views(self, size: int) -> TowerStep:
        """The part of the buffers that a graph of that size reads."""
        if self._buffers is None:
            self._buffers = _room_like(self._tower.smallest_step(), max(self._sizes))
        rows, starts, angles = self._buffers
        end = 2 + _most_runs(size)
        return TowerStep(rows[:size], tuple(each[:end] for each in starts), None if angles is None else angles[:size])

    def _fill(self, step: TowerStep, size: int) -> None:
        views, num_rows = self._views(size), len(step.rows)
        views.rows[:num_rows].copy_(step.rows)
        if views.angles is not None and step.angles is not None:
            views.angles[:num_rows].copy_(step.angles)
        for buffer, starts in zip(views.starts, step.starts, strict=True):
            buffer[: len(starts)].copy_(starts)
            left = torch.arange(1, 1 + len(buffer) - len(starts), device=buffer.device)
            buffer[len(starts) :].copy_(num_rows + left * (size - num_rows) // len(left))


def _run_views(run: RunLayers, views: TowerStep) -> tuple[torch.Tensor]:
    # Not a method: graphs that held their holder would keep the model until garbage is collected.
    return (run(views),)


def _most_runs(size: int) -> int:
    """Runs of a step that a graph has room for, beside one of the rows behind it."""
    return max(size // ROWS_OF_RUN, LEAST_RUNS)


def _room_like(step: TowerStep, size: int) -> TowerStep:
    """Zeros for a step of so many rows, of the dtypes and on the device of another one."""
    most = 2 + _most_runs(size)
    angles = None if step.angles is None else step.angles.new_zeros(size, *step.angles.shape[1:])
    return TowerStep(
        step.rows.new_zeros(size, *step.rows.shape[1:]), tuple(each.new_zeros(most) for each in step.starts), angles
    )
