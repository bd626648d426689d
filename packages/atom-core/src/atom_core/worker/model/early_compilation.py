"""`EarlyCompilation`: compiles Triton kernels side by side before steps meet them one by one (see `compile_ahead`).

In the order of their need: those of prompts while the model loads, those at the ends of a step before the first
request, and those of decodes before they are captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.graphs.shapes import PROMPT_REQS, GraphShape
from atom_core.worker.model.dummy_steps import largest_step, run_step
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.sampling.sampler import Drawing, Sampler
from atom_core.worker.steps.batch import NO_ROWS
from atom_core.worker.steps.device_inputs import DeviceInputs
from atom_kernels.triton.compile_ahead import compile_ahead

# Rows from which on linears have other kernels.
ROWS_TOLD_APART = (1, 16, 32, 64, 128)
# Tokens of a prompt that attention's kernel for long ones leaves to the plain one.
SHORT_PROMPT = 64


def compile_prompts(config: EngineConfig, model: EngineModel) -> None:
    """What the largest step and short prompts launch; that of the former takes longest.

    Pictures whose tokens see each other have a kernel of their own, which no other step launches.
    """
    largest = largest_step(config)

    def run() -> None:
        run_step(config, model, largest)
        run_step(config, model, [min(largest[0], SHORT_PROMPT)])
        if config.images is not None and config.images.spec.sees_ahead:
            run_step(config, model, [min(largest[0], SHORT_PROMPT)], sees_ahead=True)

    _compile(config, run)


class EarlyCompilation:
    """Compiles what an engine's steps launch on a GPU.

    Args:
        config, model, sampler, tables, inputs: the engine's own. None of them is changed while requests run.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: EngineModel,
        sampler: Sampler,
        tables: DeviceTables,
        inputs: DeviceInputs,
    ) -> None:
        self._config, self._model, self._sampler = config, model, sampler
        self._tables, self._inputs = tables, inputs
        self._has_decodes = False

    def compile_ends(self) -> None:
        """What a step launches before and after its model; there must be no requests yet."""

        def run() -> None:
            self._tables.write("history", (self._tables.padding_slot, 0), [0])
            self._inputs.fill(NO_ROWS, GraphShape(1, 1))
            for drawing in self._sampler.drawings:
                if drawing is not Drawing.FILTERED:
                    self._draw_for_padding(drawing)

        _compile(self._config, run)

    def compile_decodes(self) -> None:
        """What steps of few rows launch, and experts for any number of tokens; at the first call.

        Requests may be running.
        """
        largest = largest_step(self._config)[0]

        def run() -> None:
            for num_rows in ROWS_TOLD_APART:
                # Where requests are fewer, prompts have as many: some of their steps are captured too, and where their
                # log probabilities are asked for, each token has logits.
                is_decode = num_rows <= self._config.scheduler.max_num_seqs
                if is_decode or num_rows <= largest:
                    lengths = [1] * num_rows if is_decode else [num_rows]
                    run_step(self._config, self._model, lengths, num_logits=num_rows)
            for num_tokens in self._model.sizes_told_apart(largest):
                run_step(self._config, self._model, [num_tokens])
            self._draw_for_padding(Drawing.FILTERED)

        if not self._has_decodes:
            self._has_decodes = True
            _compile(self._config, run)

    def _draw_for_padding(self, drawing: Drawing) -> None:
        for num_rows in (1, PROMPT_REQS):
            logits_nR = torch.zeros(num_rows, self._sampler.width, device=self._inputs.device)
            slots_n = torch.full((num_rows,), self._tables.padding_slot, device=self._inputs.device)
            self._sampler.draw(logits_nR, slots_n, torch.zeros_like(slots_n), drawing=drawing)


def _compile(config: EngineConfig, run: Callable[[], Any]) -> None:
    """Unless torch compiles the model: its compiler must see steps as they are."""
    if config.compile.level == 0:
        compile_ahead(run)
