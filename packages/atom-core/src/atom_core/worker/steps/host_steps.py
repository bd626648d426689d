"""`HostSteps`: how a CPU takes a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.steps.batch import ModelInput, StepRows, build_input
from atom_core.worker.steps.protocol import WholeStep
from atom_core.worker.steps.recorded_decodes import RecordedDecodes

if TYPE_CHECKING:
    from atom_core.worker.vision.sight import Sight
    from atom_models.adapters.step import AdapterStep


class HostSteps:
    """`Steps` whose batches the host builds.

    Args:
        recorded: runs decodes that it has recorded; None runs every step as it comes.
    """

    def __init__(
        self, model: EngineModel, tables: HostTables, block_size: int, recorded: RecordedDecodes | None = None
    ) -> None:
        self._model, self._tables, self._block_size, self._recorded = model, tables, block_size, recorded
        self.choices = ()
        self.is_preparing = self.launches_kernels = False
        self.num_late_captures = 0
        self.encode = None if model.tower is None else model.tower.encode

    def build(
        self,
        rows: StepRows,
        *,
        needs_hidden_states: bool,
        adapters: AdapterStep | None = None,
        sight: Sight | None = None,
    ) -> ModelInput:
        """See `Steps`."""
        batch = build_input(rows, self._tables, self._block_size)
        if sight is not None:
            batch = sight.shown_to(batch)
        return batch if adapters is None else replace(batch, adapters=adapters)

    def run_layers(self, batch: ModelInput) -> LayerStates:
        """See `Steps`."""
        if self._recorded is not None and (states := self._recorded.run(batch)) is not None:
            return states
        return self._model.forward(
            batch.input_ids,
            batch.model_positions,
            batch.geometries,
            adapters=batch.adapters,
            token_types=batch.token_types,
            seen=batch.seen,
        )

    def replay_model(self, batch: ModelInput) -> WholeStep | None:
        """None: nothing is captured."""
        return None

    def replay_sampler(self, batch: ModelInput) -> torch.Tensor | None:
        """None: nothing is captured."""
        return None

    def replay_drafter(self, batch: ModelInput, sampled_n: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor | None:
        """None: nothing is captured."""
        return None

    def capture_next(self) -> bool:
        """False: there is nothing to capture."""
        return False
