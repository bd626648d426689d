"""`ModelDrafter`: a draft model follows each step, keeps up with what was computed, and guesses what comes."""

from __future__ import annotations

import numpy as np
import torch

from atom_core.messages import SchedulerOutput
from atom_core.worker.devices.upload import upload
from atom_core.worker.drafting.decodes import DraftDecodes
from atom_core.worker.drafting.first_pass import FirstPass, with_next, with_next_captured
from atom_core.worker.model.engine_draft import EngineDraft
from atom_core.worker.model.engine_model import LayerStates
from atom_core.worker.requests.tables import RequestTables
from atom_core.worker.steps.batch import ModelInput


class ModelDrafter:
    """Runs `draft` over the tokens of each step, and then token by token.

    A model that reads features is given each token paired with the features before it. A whole model is given the
    tokens themselves, and the one that was sampled behind them where it is to go on.

    What it keeps of the step's tokens comes from true states of the model that generates, and takes the place of what
    was kept there of guesses. So it does not depend on how a request's tokens were shared between steps, nor on
    guesses. Behind a rejected draft lie tokens that nobody has: what is kept there will be written again.

    Args:
        draft: over its caches.
        tables: what the worker keeps of requests; histories have what was sampled by the time of a call.
        block_size: tokens of a cache block.
    """

    def __init__(self, draft: EngineDraft, tables: RequestTables, block_size: int) -> None:
        self._draft, self._tables, self._block_size = draft, tables, block_size

    def follow(
        self, step: SchedulerOutput, batch: ModelInput, states: LayerStates, sampled_n: torch.Tensor
    ) -> torch.Tensor:
        """Take in a step, after its samples, and make the drafts that it asks for.

        Args:
            states: what the layers gave for the step's tokens.
            sampled_n: int64, what was sampled, as in `Sampled`.

        Returns:
            int64, the drafts of the first request that has any, then those of the next.
        """
        rows, device = batch.rows, states.hidden_TD.device
        numbers = np.array([scheduled.num_next_drafts for scheduled in step.scheduled])
        takers = np.flatnonzero(numbers)
        slots_T, sampling_n, takers_W, ends_W, slots_W, numbers_W = upload(
            device,
            np.repeat(rows.slots, rows.lengths),
            rows.sampling,
            takers,
            (rows.query_starts[1:] - rows.num_samples)[takers],
            rows.slots[takers],
            numbers[takers],
        )
        if self._draft.model.reads_features:
            next_ids_T = self._tables.history[slots_T, batch.positions + 1].long()
            first = FirstPass(next_ids_T, batch.positions, batch.geometries)
        elif len(takers):
            first = with_next(batch, self._tables, self._block_size, takers)
        else:
            first = FirstPass(batch.input_ids, batch.positions, batch.geometries)
        features_UD = self._take_in(first, states)
        if not len(takers):
            return torch.empty(0, dtype=torch.int64, device=device)
        # The last token that was computed and stays: behind it stands the last one that was sampled.
        num_kept_R = torch.zeros(rows.num_reqs, dtype=torch.int64, device=device)
        num_kept_R.index_add_(0, sampling_n, (sampled_n != -1).long())
        last_W = ends_W + num_kept_R[takers_W] - 1
        max_seq_len = int((rows.starts + rows.lengths + numbers)[takers].max()) + first.num_ahead - 1
        num_blocks = -(-max_seq_len // self._block_size)
        decodes = DraftDecodes(
            self._tables.block_tables[:, slots_W, :num_blocks],
            batch.positions[last_W] + first.num_ahead,
            max_seq_len=max_seq_len,
            block_size=self._block_size,
            numbers_W=numbers_W,
        )
        most = int(numbers.max())
        drafts_WK = self._guess(features_UD[first.guessing_rows(last_W, takers_W)], most, decodes)
        self._keep(drafts_WK, slots_W, batch.positions[last_W], numbers_W)
        if (numbers[takers] == most).all():
            return drafts_WK.flatten()
        (wanted,) = upload(device, np.flatnonzero(np.arange(most) < numbers[takers][:, None]))
        return drafts_WK.flatten()[wanted]

    def follow_captured(
        self,
        batch: ModelInput,
        states: LayerStates,
        sampled_n: torch.Tensor,
        numbers_W: torch.Tensor,
        number: int,
    ) -> tuple[torch.Tensor]:
        """As `follow`, for a batch of decodes that has the shape of its graph; it reads no number on the host.

        Args:
            sampled_n: tokens sampled at all places, those of padding too.
            numbers_W: int64, drafts that each request has room for, 0 for padding; behind them come some that mean
                nothing.
            number: drafts for each request.

        Returns:
            int64 ``[requests, number]``; without drafts, something that nobody reads.
        """
        tables, each = self._tables, 1 if batch.graph is None else batch.graph.tokens_each
        # Tokens that are not a request's own come before those that are.
        slots_W = batch.sample_slots[each - 1 :: each]
        if self._draft.model.reads_features:
            # A token is sampled after each.
            next_ids_T = tables.history[batch.sample_slots, batch.sample_positions].long()
            first = FirstPass(next_ids_T, batch.positions, batch.geometries)
        elif number:
            first = with_next_captured(batch, tables, self._block_size, slots_W, numbers_W)
        else:
            first = FirstPass(batch.input_ids, batch.positions, batch.geometries)
        if not number:
            features_TD = self._draft.model.features(states.hidden_TD, states.aux)
            self._draft.keep(first.input_ids, first.positions, features_TD, first.geometries)
            return (first.input_ids[:1],)
        features_UD = self._take_in(first, states)
        num_kept_W = (sampled_n != -1).view(-1, each).sum(dim=1).clamp_min(1)
        requests_W = torch.arange(len(slots_W), device=sampled_n.device)
        last_W = requests_W * each + num_kept_W - 1
        decodes = DraftDecodes(
            tables.block_tables[:, slots_W],
            batch.positions[last_W] + first.num_ahead,
            max_seq_len=batch.geometry.max_seq_len,
            block_size=self._block_size,
            numbers_W=numbers_W,
        )
        drafts_WK = self._guess(features_UD[first.guessing_rows(last_W, requests_W)], number, decodes)
        self._keep(drafts_WK, slots_W, batch.positions[last_W], numbers_W)
        return (drafts_WK,)

    def _keep(
        self, drafts_WK: torch.Tensor, slots_W: torch.Tensor, last_W: torch.Tensor, numbers_W: torch.Tensor
    ) -> None:
        """Put drafts where they are verified: behind what was sampled after the last computed token of each request."""
        places_K = torch.arange(drafts_WK.shape[1], device=drafts_WK.device)
        has_room_WK = places_K < numbers_W[:, None]
        slots_WK = torch.where(has_room_WK, slots_W[:, None], self._tables.padding_slot)
        positions_WK = torch.where(has_room_WK, last_W[:, None] + 2 + places_K, 0)
        self._tables.history[slots_WK, positions_WK] = drafts_WK.int()

    def _take_in(self, first: FirstPass, states: LayerStates) -> torch.Tensor:
        """What the draft model gives ``[U, D]`` behind a step."""
        features_TD = self._draft.model.features(states.hidden_TD, states.aux)
        return self._draft.forward(first.input_ids, first.positions, features_TD, first.geometries)

    def _guess(self, features_WD: torch.Tensor, number: int, decodes: DraftDecodes) -> torch.Tensor:
        """Drafts ``[W, number]``, the first by `features_WD`; those that a row has no room for mean nothing."""
        drafts_W = [self._draft.guess(features_WD)]
        for made, (positions_W, geometries) in enumerate(decodes.passes(number - 1), start=1):
            features_WD = self._draft.forward(drafts_W[-1], positions_W, features_WD, geometries, step=made)
            drafts_W.append(self._draft.guess(features_WD))
        return torch.stack(drafts_W, dim=1)
