"""`DeviceSteps`: how a GPU takes a step: inputs built there, and what was captured of it replayed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.worker.devices.upload import upload
from atom_core.worker.drafting.model_drafter import ModelDrafter
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.graphs.piece_graphs import PieceGraphs
from atom_core.worker.graphs.plan import plan_graphs
from atom_core.worker.graphs.shapes import PROMPT_REQS, GraphShapes
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.model.early_compilation import EarlyCompilation
from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.sampler import Drawing, Sampler
from atom_core.worker.steps.adapter_inputs import AdapterInputs
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_core.worker.steps.device_inputs import DeviceInputs
from atom_core.worker.steps.protocol import WholeStep
from atom_core.worker.vision.tower_graphs import TowerGraphs

if TYPE_CHECKING:
    from atom_core.worker.vision.sight import Sight
from atom_models.adapters.step import AdapterStep

logger = logging.getLogger(__name__)


class DeviceSteps:
    """`Steps` of a GPU: batches are built there, and those that have a graph are replayed.

    Args:
        config: the engine's configuration.
        model: what runs.
        states, tables: what the device keeps of the requests.
        sampler: draws over the states.
        max_model_len: the most tokens that a request has.
        weights_per_token: about how many weights each token is multiplied by.
        capture: makes graphs.
        drafter: follows the steps; None where nobody drafts.

    Attributes:
        choices: a line for each value that was chosen for the user.
        launches_kernels: they are compiled when they are first met.
        is_preparing: a graph is captured or kernels are compiled.
        num_late_captures: graphs that were captured while a step waited for them.
        encode: makes features of pictures, by graphs where they have one; None without a tower.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: EngineModel,
        states: RequestStates,
        sampler: Sampler,
        tables: DeviceTables,
        *,
        max_model_len: int,
        weights_per_token: int,
        capture: Capture,
        drafter: ModelDrafter | None = None,
    ) -> None:
        self._model, self._states, self._sampler = model, states, sampler
        self.is_preparing, self.launches_kernels = False, True
        self._captures_late = config.compile.warmup == "none"
        self.num_late_captures = 0
        self._graphs_required = config.compile.graphs_required
        max_num_seqs, max_num_tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
        self._inputs = DeviceInputs(
            tables,
            block_size=config.cache.block_size,
            # Room for the padding of graphs.
            max_num_seqs=max(max_num_seqs + 1, PROMPT_REQS),
            max_num_tokens=max(max_num_tokens, max_num_seqs),
            sees=config.images is not None,
        )
        self._compilation = EarlyCompilation(config, model, sampler, tables, self._inputs)
        self._compilation.compile_ends()
        plan = plan_graphs(config, model, weights_per_token)
        self.choices = plan.choices
        self._pieces = PieceGraphs(self._inputs, model, plan.piece_sizes, capture)
        make_graphs = partial(
            StepGraphs,
            self._inputs,
            draw=partial(_draw, sampler),
            drawings=sampler.drawings,
            follow=None if drafter is None else drafter.follow_captured,
            num_drafts=0 if config.speculation is None else config.speculation.num_tokens,
            max_num_samples=config.max_num_samples,
            max_seq_len=max_model_len,
            capture=capture,
        )
        # Not methods: graphs that held their holder would keep the model until garbage is collected.
        self._graphs = make_graphs(run_model=partial(_run_whole, model), shapes=plan.shapes)
        # Steps without an adapter have graphs of their own, which read no matrices of adapters.
        adapted = plan.shapes.decodes if model.adapters is not None and model.adapters.fixed else GraphShapes()
        self._adapters = AdapterInputs(max((shape.num_tokens for shape in adapted.all), default=0), self._inputs.device)
        self._adapter_graphs = make_graphs(run_model=partial(_run_adapted, model, self._adapters), shapes=adapted)

        self._tower = None if model.tower is None else TowerGraphs(model.tower, plan.tower_rows, capture)
        self.encode = None if self._tower is None else self._tower.encode

    def capture_next(self) -> bool:
        """See `Steps`."""
        self.is_preparing = True
        try:
            self._compilation.compile_decodes()
            if self._graphs.is_awaited and self._pieces.has_largest and self._graphs.capture_next():
                return True
            return any(graphs.capture_next() for graphs in self._all_graphs)
        except Exception as error:
            self._do_without_graphs(error)
            return False
        finally:
            self.is_preparing = False

    def build(
        self,
        rows: StepRows,
        *,
        needs_hidden_states: bool,
        adapters: AdapterStep | None = None,
        sight: Sight | None = None,
    ) -> ModelInput:
        """See `Steps`. It is padded to the shape of its graph, or of its pieces where it has none.

        Steps with adapters have graphs for decodes alone, and those with tokens of pictures have none. Where nobody
        warms up, the first decode has everything captured: sooner, it would delay first tokens.
        """
        if self._captures_late and rows.num_decodes == rows.num_reqs:
            while self.capture_next():
                self.num_late_captures += 1
        if sight is not None and not sight.is_of_text:
            return replace(self._inputs.build(rows, sight=sight), adapters=adapters)
        has_all = len(rows.sampling) > 0 and not needs_hidden_states
        if adapters is not None:
            graph = self._adapter_graphs.shape_of(rows) if has_all else None
            if graph is not None:
                self._adapters.fill(adapters, rows, graph)
            return replace(self._inputs.build(rows, graph, graph, sight), adapters=adapters)
        graph = self._graphs.shape_of(rows) if has_all else None
        return self._inputs.build(rows, graph or self._pieces.shape_of(rows), graph, sight)

    def run_layers(self, batch: ModelInput) -> LayerStates:
        """See `Steps`."""
        is_captured = batch.adapters is None and not batch.has_pictures
        shape = self._pieces.shape_of(batch.rows) if is_captured else None
        if shape is None:
            return self._model.forward(
                batch.input_ids,
                batch.model_positions,
                batch.geometries,
                adapters=batch.adapters,
                token_types=batch.token_types,
                seen=batch.seen,
            )
        return self._pieces.replay(batch, shape)

    def replay_model(self, batch: ModelInput) -> WholeStep | None:
        """See `Steps`."""
        if batch.graph is None:
            return None
        logits_nR, *states = self._graphs_of(batch).replay_model(batch.graph)
        logits_nR = batch.of_graph(logits_nR, len(batch.rows.sampling))
        if not states:
            return WholeStep(logits_nR, None)
        hidden_TD, *aux = (batch.of_graph(each, batch.rows.num_tokens) for each in states)
        return WholeStep(logits_nR, LayerStates(hidden_TD, aux))

    def replay_sampler(self, batch: ModelInput) -> torch.Tensor | None:
        """See `Steps`. A row that asks for more than drawing is left to others."""
        if batch.graph is None:
            return None
        slots = batch.rows.sampled_slots
        if self._states.have_extras(slots):
            return None
        ids = self._graphs_of(batch).replay_sampler(batch.graph, self._sampler.drawing_of(slots))
        return batch.of_graph(ids, len(slots))

    def replay_drafter(self, batch: ModelInput, sampled_n: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor | None:
        """See `Steps`. Where requests have unequal numbers, all get the most, and what is too much is left out."""
        if batch.graph is None:
            return None
        wanted = np.array(numbers, dtype=np.int64)
        drafts_WK = self._graphs_of(batch).replay_drafter(batch.graph, sampled_n, wanted, batch.places)
        most = int(wanted.max())
        if drafts_WK is None or not most:
            return None if drafts_WK is None else sampled_n[:0]
        drafts_WK = drafts_WK[: len(wanted), :most]
        if (wanted == most).all():
            return drafts_WK.flatten()
        (places,) = upload(sampled_n.device, np.flatnonzero(np.arange(most) < wanted[:, None]))
        return drafts_WK.flatten()[places]

    @property
    def _all_graphs(self) -> Sequence[PieceGraphs | StepGraphs | TowerGraphs]:
        """In the order in which they are captured."""
        of_steps = (self._pieces, self._graphs, self._adapter_graphs)
        return of_steps if self._tower is None else (*of_steps, self._tower)

    def _graphs_of(self, batch: ModelInput) -> StepGraphs:
        return self._graphs if batch.adapters is None else self._adapter_graphs

    def _do_without_graphs(self, error: Exception) -> None:
        """Go on eagerly where a step cannot be captured, unless graphs were asked for."""
        # CUDA's errors go on with advice to programmers.
        cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if self._graphs_required:
            raise ConfigError(f"a step cannot be captured: {cause}; cudagraph_mode none runs without graphs") from error
        logger.warning("steps run without graphs, since capturing one failed: %s", cause)
        for captured in self._all_graphs:
            captured.forget()


def _run_whole(model: EngineModel, batch: ModelInput) -> tuple[torch.Tensor, ...]:
    """Logits of the rows that sample, and the states of all tokens where a draft model reads them."""
    states = model.forward(batch.input_ids, batch.model_positions, batch.geometries, batch.adapters)
    logits_nR = model.compute_logits(batch.of_sampling_rows(states.hidden_TD)).contiguous()
    return (logits_nR,) if model.draft is None else (logits_nR, states.hidden_TD, *states.aux)


def _run_adapted(model: EngineModel, adapters: AdapterInputs, batch: ModelInput) -> tuple[torch.Tensor, ...]:
    """The same of a batch whose tokens have adapters."""
    return _run_whole(model, replace(batch, adapters=adapters.step(len(batch.input_ids))))


def _draw(sampler: Sampler, logits_nR: torch.Tensor, batch: ModelInput, drawing: Drawing) -> tuple[torch.Tensor]:
    """Ids ``[n]`` of a batch that has the shape of its graph."""
    return (sampler.draw(logits_nR, batch.sample_slots, batch.sample_positions, drawing=drawing),)
