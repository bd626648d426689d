"""Loads a model's weights for the engine, through `atom_models`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.compilation import compile_model
from atom_core.worker.model.draft_loading import build_with_draft, load_draft
from atom_core.worker.model.engine_draft import EngineDraft
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_kernels.mori.dispatcher import MoriDispatchers
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import RowDispatchers
from atom_models import (
    BuildContext,
    Checkpoint,
    build_model,
    load_dummy_weights,
    load_weights,
    mixer_layers,
    num_idle_weights,
    open_checkpoint,
    sizes_told_apart,
)
from atom_models.adapters.loaded import LoadedAdapters
from atom_models.groups import WHOLE, Groups
from atom_models.layers.mixture.balance import place_with_copies
from atom_models.layers.mixture.exchange import take_part
from atom_models.layers.mixture.rebalancing import ExpertBalancer
from atom_models.layers.shared_vocabulary import SharedVocabulary
from atom_models.model import construct_model, stored_quantization
from atom_models.vision.sees import tower_of


def load_engine_model(config: EngineConfig, ranks: WorkerRanks = ALONE) -> EngineModel:
    """Build `config.model` on this machine's device and load its weights, or the part that this one of `ranks` has."""
    checkpoint = open_checkpoint(config.model.path)
    groups = ranks.sharing_context(config.parallel.decode_context_parallel_size)
    context = BuildContext(
        quantization=stored_quantization(checkpoint, config.model.quantization),
        platform=replace(detect_platform(), batch_invariant=config.compile.batch_invariant),
        dtype=getattr(torch, config.model.dtype),
        device=torch.device(config.device),
        groups=groups.spreading_experts() if config.parallel.enable_expert_parallel else groups,
        cache=config.cache.format,
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
        model_impl=config.model.model_impl,
        place_experts=place_with_copies(config.parallel.num_redundant_experts),
        expert_exchange=config.parallel.expert_exchange,
        row_dispatchers=_row_dispatchers(config, groups),
        num_drafts=0 if config.speculation is None else config.speculation.num_tokens,
        takes_adapters=config.lora is not None,
        language_model_only=config.images is None,
    )
    speculation = config.speculation
    draft: EngineDraft | None = None
    if speculation is not None and speculation.is_by_model:
        model, draft = build_with_draft(checkpoint, context, speculation)
    else:
        model = build_model(checkpoint, context)
    if config.model.load_dummy:
        load_dummy_weights(model, checkpoint, device=config.device)
    else:
        load_weights(model, checkpoint, progress=sys.stderr.isatty() and ranks.rank == 0)
    if draft is not None and speculation is not None:
        dummy, progress = config.model.load_dummy, sys.stderr.isatty()
        load_draft(draft, checkpoint, speculation, dummy=dummy, device=config.device, progress=progress)
    model.eval()
    compute_logits: Any = model.compute_logits
    stage = context.stage
    return EngineModel(
        compile_model(model, config, ranks.rank),
        compute_logits,
        mixer_layers(model),
        num_idle_weights(model),
        draft,
        SharedVocabulary(context.collectives, config.model.vocab_size),
        sizes_told_apart=partial(sizes_told_apart, model),
        # Hooks would be compiled into the model.
        modules={} if config.compile.level else dict(model.named_modules()),
        stage=stage,
        mixers_of_stages=_mixers_of_all_stages(checkpoint, context) if stage.count > 1 else None,
        arriving=None if stage.is_first else _room_for_arriving(config, model, context),
        balancer=_balancer(config, model, context),
        classify=getattr(model, "classify", None),
        adapters=_adapters(config, model, context),
        tower=tower_of(model),
        take_part=partial(take_part, model) if config.parallel.enable_dp_attention else None,
        run_as_written=model if config.images is not None and config.compile.level else None,
    )


def _row_dispatchers(config: EngineConfig, groups: Groups) -> RowDispatchers | None:
    """What carries rows between engines, where that is left to a library."""
    if config.parallel.expert_exchange != "mori" or groups.data.size == 1:
        return None
    return MoriDispatchers(groups.data, config.scheduler.max_num_batched_tokens)


def _adapters(config: EngineConfig, model: Any, context: BuildContext) -> LoadedAdapters | None:
    """What takes adapters into the model; where whole steps are captured, those with adapters are too."""
    if config.lora is None:
        return None
    fixed = config.compile.graph_mode in ("full", "full-and-piecewise")
    return LoadedAdapters(model, context, max_loras=config.lora.max_loras, max_rank=config.lora.max_rank, fixed=fixed)


def _balancer(config: EngineConfig, model: Any, context: BuildContext) -> ExpertBalancer | None:
    """What moves the model's experts between ranks, where the configuration has them move."""
    balance, ranks = config.parallel.balance, context.groups.expert
    if balance is None or ranks is None or ranks.size == 1:
        return None
    return ExpertBalancer(model, ranks, context.device, window=balance.window, interval=balance.interval)


def _mixers_of_all_stages(checkpoint: Checkpoint, context: BuildContext) -> Mapping[str, Any]:
    """The layers with caches of the whole model, which is built and not loaded, and without tables of angles."""
    groups = replace(context.groups, stage=WHOLE)
    whole = replace(context, groups=groups, max_model_len=context.block_size)
    return mixer_layers(construct_model(checkpoint, whole))


def _room_for_arriving(config: EngineConfig, model: Any, context: BuildContext) -> torch.Tensor:
    """Where what the stage before gives of a step arrives: captured steps read it where it is."""
    most = max(config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs, 2)
    return torch.zeros(most, model.config.hidden_size, dtype=context.dtype, device=context.device)
