"""Runs a draft model behind its target without an engine: the draft's logits at every position of some texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atom_models import BuildContext, CheckpointError, LoadedModel, build_model, load_weights, open_checkpoint
from atom_models.drafting import build_draft, choose_draft, load_draft_weights
from atom_models.layers.shared_vocabulary import SharedVocabulary
from atom_models.paged_run import PagedRun, SequenceStep


class Drafting(nn.Module):
    """A target and its draft as one model, whose hidden states are the draft's.

    Attributes:
        next_ids: int64, the token after each position of the step; set before each.
        only_keeps: nothing is asked of the draft but to keep what later tokens read; then its features come out.
    """

    def __init__(self, target: nn.Module, draft: nn.Module, step: int = 0) -> None:
        super().__init__()
        self.target, self.draft, self.step = target, draft, step
        self.next_ids = torch.empty(0, dtype=torch.int64)
        self.only_keeps = False

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        outputs, draft = self.target(input_ids, positions), self.draft
        take: Any = draft.features
        features = take(*(outputs if isinstance(outputs, tuple) else (outputs, [])))
        if self.only_keeps:
            keep: Any = draft.keep
            keep(self.next_ids, positions, features)
            return features
        return draft(self.next_ids, positions, features, self.step)


def load_both(folder: Path, draft_folder: Path | None = None, **fields: Any) -> tuple[LoadedModel, Any]:
    """A target in float32 and its draft, both with their weights; `fields` are those of the context."""
    checkpoint = open_checkpoint(folder)
    drafts = () if draft_folder is None else (open_checkpoint(draft_folder),)
    context = BuildContext(**{"max_model_len": checkpoint.max_model_len, **fields})
    context = replace(context, aux_hidden_states=choose_draft(checkpoint, *drafts).aux_hidden_states)
    target = build_model(checkpoint, context)
    draft = build_draft(checkpoint, context, target=target, draft_checkpoint=drafts[0] if drafts else None)
    load_weights(target, checkpoint, progress=False)
    load_draft_weights(draft, *(drafts or (checkpoint,)), progress=False)
    return LoadedModel(target, checkpoint, context), draft


def draft_logits(
    loaded: LoadedModel, draft: Any, texts: Sequence[Sequence[int]], *, step: int = 0
) -> list[torch.Tensor]:
    """Float32 ``[len(text) - 1, draft vocabulary]`` of each text but its last token, all texts as one ragged batch.

    Row i has seen the tokens up to i + 1, and is of the token after that.
    """
    model, steps, num_blocks = Drafting(loaded.model, draft, step), [], 0
    # Attention takes sequences of one token first.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for index in order:
        needed = -(-len(texts[index]) // loaded.context.block_size)
        steps.append(SequenceStep(texts[index][:-1], 0, range(num_blocks, num_blocks + needed)))
        num_blocks += needed
    model.next_ids = torch.tensor([token for index in order for token in texts[index][1:]])
    rows = dict(zip(order, PagedRun(model, num_blocks).step(steps), strict=True))
    with torch.inference_mode():
        vocabulary = SharedVocabulary(loaded.context.collectives, draft.vocab_size)
        return [vocabulary.whole(draft.compute_logits(rows[index])) for index in range(len(texts))]


def refusal(target: Path, head: Path, **fields: Any) -> str:
    """What choosing or building a head says, once the target is built; one line."""
    checkpoint, drafts = open_checkpoint(target), open_checkpoint(head)

    def build() -> None:
        context = BuildContext(max_model_len=64, **fields)
        choice = choose_draft(checkpoint, drafts, model_impl=context.model_impl)
        context = replace(context, aux_hidden_states=choice.aux_hidden_states)
        build_draft(checkpoint, context, target=build_model(checkpoint, context), draft_checkpoint=drafts)

    with pytest.raises(CheckpointError) as caught:
        build()
    assert "\n" not in str(caught.value)
    return str(caught.value)
