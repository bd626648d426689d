"""`DeviceSteps`: how a GPU takes a step: inputs built there, and decodes replayed from captured graphs."""

from __future__ import annotations

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.cuda_capture import Capture
from atom_core.worker.decode_graphs import DecodeGraphs
from atom_core.worker.device_inputs import DeviceInputs
from atom_core.worker.device_tables import DeviceTables
from atom_core.worker.input_batch import ModelInput, StepRows
from atom_core.worker.paged_model import PagedModel
from atom_core.worker.request_states import RequestStates
from atom_core.worker.sampler import draw


class DeviceSteps:
    """Builds batches, and replays those that have a graph.

    Args:
        config: of the engine.
        model: what runs.
        states, tables: of the requests.
        max_model_len: of a request.
        capture: makes graphs.

    Attributes:
        choices: a line for each value that was chosen for the user.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: PagedModel,
        states: RequestStates,
        tables: DeviceTables,
        *,
        max_model_len: int,
        capture: Capture,
    ) -> None:
        self.choices: list[str] = []
        self._model, self._states = model, states
        sizes = self._capture_sizes(config)
        max_num_seqs = config.scheduler.max_num_seqs
        self._inputs = DeviceInputs(
            tables,
            block_size=config.cache.block_size,
            max_num_seqs=max_num_seqs,
            max_num_tokens=max(config.scheduler.max_num_batched_tokens, max_num_seqs),
        )
        self._graphs: DecodeGraphs | None = None
        if sizes:
            self._graphs = DecodeGraphs(
                self._inputs,
                run_model=lambda batch: model.compute_logits(
                    model.forward(batch.input_ids, batch.positions, batch.geometries)
                ),
                draw=lambda logits, slots, positions, filters: draw(logits, states, slots, positions, filters=filters),
                sizes=sizes,
                max_seq_len=max_model_len,
                vocab_size=config.model.vocab_size,
                capture=capture,
            )

    def graph_size(self, rows: StepRows) -> int | None:
        """Which graph runs a step: None unless each request decodes one token, and asks for nothing else."""
        if self._graphs is None or len(rows.sampling) != rows.num_tokens:
            return None
        extras = self._states.extras
        for slot in rows.slots.tolist():
            found = extras[slot]
            if found is not None and found.prompt_logprobs is not None:
                return None
        return self._graphs.size_for(rows.num_reqs)

    def build(self, rows: StepRows, graph_size: int | None) -> ModelInput:
        """The batch of a step, padded to the size of its graph."""
        if graph_size is not None and self._graphs is not None:
            self._graphs.capture_all()
        return self._inputs.build(rows, 0 if graph_size is None else graph_size - rows.num_reqs)

    def replay_model(self, rows: StepRows, graph_size: int) -> torch.Tensor:
        """Logits ``[n, vocab]`` of the batch that was built last."""
        if self._graphs is None:
            raise RuntimeError("there are no graphs to replay")
        return self._graphs.replay_model(graph_size)[: rows.num_reqs]

    def replay_sampler(self, rows: StepRows, graph_size: int) -> torch.Tensor | None:
        """Ids ``[n]`` of the logits that were computed last; None where a row asks for more than drawing."""
        states = self._states
        if self._graphs is None or any(states.extras[slot] is not None for slot in rows.slots.tolist()):
            return None
        return self._graphs.replay_sampler(graph_size, bool(states.filters[rows.slots].any()))[: rows.num_reqs]

    def _capture_sizes(self, config: EngineConfig) -> tuple[int, ...]:
        if config.compile.graph_mode == "none":
            return ()
        reason = self._model.why_not_capturable()
        if reason is not None:
            self.choices.append(f"cudagraph_mode = none: {reason}")
            return ()
        return config.compile.capture_sizes
