"""Small draft models, behind a tiny target or behind one that knows the last token alone; engines with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atom_core import LLMEngine
from atom_core.config import EngineArgs, EngineConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import open_model, resolve
from atom_core.executor import InlineExecutor
from atom_core.speculation import SpeculationConfig
from atom_core.worker.model.engine_draft import EngineDraft
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model.loading_with_cache import LoadModel
from atom_core.worker.model_runner import ModelRunner
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_kernels.platform import detect_platform
from atom_models import BuildContext, build_model, load_weights, mixer_layers, open_checkpoint
from atom_models.layers import Attention

MakeDraft = Callable[[Any, BuildContext], nn.Module]
"""``(target, context) -> draft``."""
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


class ToyDraft(nn.Module):
    """One layer of attention over [embedding, features], with random matrices and the target's embedding and head.

    Args:
        aux: layers of the target that it reads, in the place of the hidden states.
        kept: target ids that it knows; None knows all.
        sliding_window: window of its attention.
    """

    reads_features = True

    def __init__(
        self,
        target: Any,
        context: BuildContext,
        *,
        aux: tuple[int, ...] = (),
        kept: Sequence[int] | None = None,
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        self.aux_hidden_states = aux
        self.target_ids = None if kept is None else torch.tensor(kept, device=context.device)
        self._target, size = [target], target.config.hidden_size
        self.attention = Attention(
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            context=context,
            prefix="draft.layers.0.self_attn.attn",
            sliding_window=sliding_window,
        )
        generator = torch.Generator().manual_seed(3)

        def matrix(*shape: int) -> torch.Tensor:
            return (torch.randn(shape, generator=generator) / shape[0] ** 0.5).to(context.device)

        self.qkv = matrix(2 * size, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.output = matrix(HEADS * HEAD_DIM, size)
        self.mixed = matrix(2 * size, size)
        self.fused = matrix(max(len(aux), 1) * size, size)

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([*aux], dim=-1) @ self.fused if self.aux_hidden_states else hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        x = self.inputs(input_ids, features)
        q, k, v = (x @ self.qkv).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=-1)
        return self.outputs(x, self.attention(q.contiguous(), k.contiguous(), v.contiguous(), positions), step)

    def inputs(self, input_ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        embeds = self._target[0].embed_input_ids(input_ids)
        return torch.cat([_of_length_one(embeds), _of_length_one(features)], dim=-1)

    def outputs(self, x: torch.Tensor, attended: torch.Tensor, step: int) -> torch.Tensor:
        """It depends on the step, as where several layers take turns."""
        return x @ self.mixed + (3 + step) * attended @ self.output

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        self.forward(input_ids, positions, features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        logits = self._target[0].compute_logits(features)
        return logits if self.target_ids is None else logits[:, self.target_ids]


class LastTokenTarget(nn.Module):
    """What comes depends on the last token: most often it is its place in a permutation."""

    def __init__(self, vocab_size: int, certainty: float = 20.0) -> None:
        super().__init__()
        order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(2))
        self.table = torch.zeros(vocab_size, vocab_size).scatter_(1, order[:, None], certainty)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.table[input_ids]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.clone()


class LastTokenDraft(nn.Module):
    """Knows the permutation of a `LastTokenTarget`; or, with `is_random`, guesses anything."""

    aux_hidden_states = ()
    target_ids = None
    reads_features = True

    def __init__(self, target: LastTokenTarget, *, is_random: bool = False) -> None:
        super().__init__()
        self._target, self._is_random = target, is_random
        self._generator = torch.Generator().manual_seed(8)

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        return hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        return self._target.table[input_ids]

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """There is nothing that it keeps."""

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        return torch.rand(features.shape, generator=self._generator).to(features) if self._is_random else features


def load_last_token(
    config: EngineConfig, ranks: WorkerRanks = ALONE, *, is_random: bool = False, **options: Any
) -> EngineModel:
    """The model of an engine that has no layers with a cache."""
    target = LastTokenTarget(config.model.vocab_size, **options)
    target.table = target.table.to(config.device)
    draft = EngineDraft(LastTokenDraft(target, is_random=is_random), {}) if config.speculation else None
    return EngineModel(target, target.compute_logits, {}, draft=draft)


def load_with_draft(
    make_draft: MakeDraft, config: EngineConfig, ranks: WorkerRanks = ALONE, *, aux: tuple[int, ...] = ()
) -> EngineModel:
    """The checkpoint of `config`, and a toy behind it."""
    checkpoint = open_checkpoint(config.model.path)
    context = BuildContext(
        platform=detect_platform(),
        dtype=torch.float32,
        device=config.device,
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
        aux_hidden_states=aux,
        num_drafts=0 if config.speculation is None else config.speculation.num_tokens,
    )
    target = build_model(checkpoint, context)
    load_weights(target, checkpoint, progress=False)
    draft = make_draft(target, context)
    model = EngineModel(target.eval(), target.compute_logits, mixer_layers(target))
    return replace(model, draft=EngineDraft(draft.eval(), mixer_layers(draft)))  # pyright: ignore[reportArgumentType]


def config_of(folder: Path, *, num_drafts: int = 3, adaptive: bool = False, **options: Any) -> EngineConfig:
    """The configuration of an engine with a draft model; whoever runs it puts that in place."""
    args = EngineArgs(model=str(folder), **options)
    speculation = SpeculationConfig(method="mtp", num_tokens=num_drafts, adaptive=adaptive)
    return replace(resolve(args, open_model(args)), speculation=speculation)


def let_draft(engine: LLMEngine, config: EngineConfig, load_model: LoadModel) -> None:
    """Put another core into an engine that is idle: of `config`, with the model that `load_model` gives."""
    engine._open_core().close()
    engine._core = EngineCore(config, InlineExecutor(ModelRunner(config, load_model)))
    engine._speculates = config.speculation is not None


def _of_length_one(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5
