"""`Steps`: how a device takes a step; on the host, or on a GPU that has captured some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from atom_core.worker.model.engine_model import LayerStates
from atom_core.worker.steps.batch import ModelInput, StepRows

if TYPE_CHECKING:
    from atom_core.worker.vision.feature_cache import Encode
    from atom_core.worker.vision.sight import Sight
    from atom_models.adapters.step import AdapterStep


class WholeStep(NamedTuple):
    """A step of which one graph has all.

    Attributes:
        logits_nR: float32, of the rows that sample; of several ranks each has its columns.
        states: what the layers gave for its tokens; None where nobody drafts from them.
    """

    logits_nR: torch.Tensor
    states: LayerStates | None


class Steps(Protocol):
    """Builds batches and runs them."""

    @property
    def choices(self) -> Sequence[str]:
        """A line for each value that was chosen for the user."""
        ...

    @property
    def launches_kernels(self) -> bool:
        """Whether steps launch kernels that are compiled when they are first met."""
        ...

    @property
    def is_preparing(self) -> bool:
        """Whether a graph is captured or kernels are compiled; asked from any thread."""
        ...

    @property
    def num_late_captures(self) -> int:
        """Graphs that were captured while a step waited for them."""
        ...

    @property
    def encode(self) -> Encode | None:
        """Makes features of pictures; None in a model without a tower, and in stages without one."""
        ...

    def build(
        self,
        rows: StepRows,
        *,
        needs_hidden_states: bool,
        adapters: AdapterStep | None = None,
        sight: Sight | None = None,
    ) -> ModelInput:
        """The batch of a step, after the tables were written.

        Args:
            needs_hidden_states: more of it is needed than the logits of the rows that sample.
            adapters: which adapter each token has; None where none has one.
            sight: what pictures make of the step; None where none of its requests has any.
        """
        ...

    def run_layers(self, batch: ModelInput) -> LayerStates:
        """The states of the batch that was built last."""
        ...

    def replay_model(self, batch: ModelInput) -> WholeStep | None:
        """What a graph makes of the batch that was built last; None where no graph has all of it."""
        ...

    def replay_sampler(self, batch: ModelInput) -> torch.Tensor | None:
        """Int64 ids ``[n]`` as in `Sampled`, drawn from the logits of `replay_model`; None where no graph does it."""
        ...

    def replay_drafter(self, batch: ModelInput, sampled_n: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor | None:
        """The drafts behind the step that was sampled last, as `ModelDrafter.follow` gives them; None without a graph.

        Args:
            sampled_n: as in `Sampled`.
            numbers: drafts for each request.
        """
        ...

    def capture_next(self) -> bool:
        """Capture a graph ahead of its use; False where none is left."""
        ...
