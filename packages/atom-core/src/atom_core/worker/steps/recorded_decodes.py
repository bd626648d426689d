"""`RecordedDecodes`: decode steps of a CPU, recorded once for each number of requests and then replayed.

What a graph is on a GPU: the layers of a step without the Python between their kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.steps.batch import DecodeRows, ModelInput
from atom_kernels.recording import record
from atom_models.adapters.step import AdapterStep
from atom_models.forward_context import get_forward_context

logger = logging.getLogger(__name__)

# Beyond them kernels take so long that the Python between them is no matter.
_MOST_REQUESTS = 64
# A number of requests that comes this often will come again.
_STEPS_BEFORE = 2


class RecordedDecodes:
    """The layers of `model` on steps in which every request decodes one token.

    A recorded step serves after it gave the bits of the layers for a step that it was not recorded from: work that
    decided anything by what its inputs held would differ there.

    Args:
        max_blocks: columns of a block table at most.
        max_seq_len: the most tokens that a request ever has.
        is_marked: whether a trace names the layers, which are called one by one meanwhile.
    """

    def __init__(self, model: EngineModel, *, max_blocks: int, max_seq_len: int, is_marked: Callable[[], bool]) -> None:
        self._model, self._max_blocks, self._max_seq_len = model, max_blocks, max_seq_len
        self._is_marked = is_marked
        # By the number of requests, and whether any of them has an adapter.
        self._seen: dict[tuple[int, bool], int] = {}
        self._decodes: dict[tuple[int, bool], _Decode] = {}
        self._num_changes = 0
        self._is_trusted = all(plan.recordable for plan, _, _ in model.cached.plans)

    def run(self, batch: ModelInput) -> LayerStates | None:
        """The states of a step of a number of requests that is recorded, or is now; None where it is to run as it is.

        They are valid until the next step.
        """
        num_reqs = batch.rows.num_reqs
        if not self._is_trusted or num_reqs > _MOST_REQUESTS or not _is_plain(batch) or self._is_marked():
            return None
        kind = (num_reqs, batch.adapters is not None)
        if kind[1]:
            self._forget_moved()
        decode = self._decodes.get(kind)
        if decode is not None:
            return decode.replay(batch) if decode.is_proven else self._prove(decode, batch)
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._seen[kind] <= _STEPS_BEFORE:
            return None
        return self._record(kind, batch)

    def _record(self, kind: tuple[int, bool], batch: ModelInput) -> LayerStates | None:
        try:
            decode = _Decode(self._model, batch, max_blocks=self._max_blocks, max_seq_len=self._max_seq_len)
        except Exception as error:  # the step runs as it is: what fails there, too, is no matter of the recording
            logger.warning("decode steps are not recorded: %s", error)
            self._is_trusted = False
            return None
        if decode.why_not is None:
            self._decodes[kind] = decode
        else:
            logger.info("decode steps are not recorded: %s", decode.why_not)
            self._is_trusted = False
        return decode.states

    def _forget_moved(self) -> None:
        """Let go of steps that read matrices of adapters where these no longer lie."""
        adapters = self._model.adapters
        if adapters is not None and adapters.num_changes != self._num_changes:
            self._num_changes = adapters.num_changes
            self._decodes = {kind: decode for kind, decode in self._decodes.items() if not kind[1]}

    def _prove(self, decode: _Decode, batch: ModelInput) -> LayerStates:
        expected = self._model.forward(batch.input_ids, batch.positions, batch.geometries, adapters=batch.adapters)
        found = decode.replay(batch)
        decode.is_proven = all(
            torch.equal(one.view(torch.uint8), other.view(torch.uint8))
            for one, other in zip((expected[0], *expected.aux), (found[0], *found.aux), strict=True)
        )
        if not decode.is_proven:
            logger.warning("decode steps are not recorded: one that was gave other numbers than the model's layers do")
            self._is_trusted = False
            self._decodes.clear()
        return expected


class _Decode:
    """A recorded step, and the tensors that it reads."""

    def __init__(self, model: EngineModel, batch: ModelInput, *, max_blocks: int, max_seq_len: int) -> None:
        self.is_proven = False
        self._input_ids, self._positions = batch.input_ids.clone(), batch.positions.clone()
        first = batch.geometry
        shared = {
            "query_start_loc": first.query_start_loc.clone(),
            "seq_lens": first.seq_lens.clone(),
            "max_seq_len": max_seq_len,
        }
        self._geometries = [
            replace(
                geometry,
                **shared,
                block_table=torch.zeros(geometry.num_reqs, max_blocks, dtype=torch.int32),
                slot_mapping=geometry.slot_mapping.clone(),
            )
            for geometry in batch.geometries
        ]
        self._adapters = None if batch.adapters is None else AdapterStep.captured(batch.adapters.places.clone())
        self._fill(batch)
        with model.mixing(self._geometries, self._adapters):
            # The kernels' metadata points into the tensors, and stays for as long as they are replayed.
            self._context = get_forward_context()
            self._work = record(lambda: model.run_layers(self._input_ids, self._positions))

    @property
    def why_not(self) -> str | None:
        """See `RecordedWork`."""
        return self._work.why_not

    @property
    def states(self) -> LayerStates:
        return self._work.outputs

    def replay(self, batch: ModelInput) -> LayerStates:
        self._fill(batch)
        self._work.replay()
        return self._work.outputs

    def _fill(self, batch: ModelInput) -> None:
        self._input_ids.copy_(batch.input_ids)
        self._positions.copy_(batch.positions)
        self._geometries[0].seq_lens.copy_(batch.geometries[0].seq_lens)
        if self._adapters is not None and batch.adapters is not None:
            self._adapters.places.copy_(batch.adapters.places)
        for mine, given in zip(self._geometries, batch.geometries, strict=True):
            mine.block_table[:, : given.block_table.shape[1]].copy_(given.block_table)
            mine.slot_mapping.copy_(given.slot_mapping)


def _is_plain(batch: ModelInput) -> bool:
    """Whether its requests decode one token each, of text."""
    return (
        isinstance(batch.rows, DecodeRows)
        and batch.token_types is None
        and batch.offsets is None
        and batch.seen is None
        and batch.geometries[0].sees_until is None
    )
