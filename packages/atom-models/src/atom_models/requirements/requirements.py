"""`model_requirements`: sizes of a model from its config."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import nn

from atom_kernels.mixers import MixerProblem, select_mixer
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.protocols import CacheFormat
from atom_kernels.select import plans_remembered
from atom_models.build_context import BuildContext
from atom_models.checkpoint import Checkpoint, CheckpointError
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError, quantization_method
from atom_models.fallback.choice import Implementation, choose_implementation
from atom_models.groups import UNSHARED, WHOLE, Stage
from atom_models.layers import LightningIndex
from atom_models.layers.loadable import loadable
from atom_models.model import config_warnings, construct_model, mixer_layers, stored_quantization
from atom_models.quantization import ROUNDED_TO, UNQUANTIZED, GGUFQuantization, Quantization
from atom_models.requirements.cache import PLANNED_CACHES, CacheGroup, cache_groups, snapshot_bytes
from atom_models.requirements.parameters import Count, count_parameters
from atom_models.requirements.rank_work import RankWork, rank_work
from atom_models.requirements.sharing import OneOf, groups_of, spread_experts
from atom_models.vision.sees import num_tower_weights

BLOCK_SIZE = 16


@dataclass(frozen=True)
class RankShare:
    """What one of several ranks holds, weights by number format and caches, and what it runs.

    They share each layer, or are an engine each, with requests of its own, which share the experts alone.

    Attributes:
        mixers: layers that are alike, and how many there are.
    """

    weight_bytes: Mapping[str, int]
    cache_groups: tuple[CacheGroup, ...]
    work: RankWork
    mixers: Mapping[MixerProblem, int] = field(default_factory=dict)
    num_engines: int = 1

    def copied_bytes(self, platform: Platform) -> int:
        """Bytes of weights that layers with a cache keep there in another order, beside those in `weight_bytes`."""
        plans = [(select_mixer(problem, platform), count) for problem, count in self.mixers.items()]
        return sum(count * plan.holds.more_bytes for plan, count in plans if plan.holds is not None)

    def kv_bytes(self, num_tokens: int, cache: CacheFormat, platform: Platform | None = None) -> int:
        """Bytes of cache that a request of `num_tokens` takes on this rank; on this machine, unless on `platform`."""
        return _kv_bytes(self.cache_groups, num_tokens, cache, platform)

    def snapshot_bytes(self, room: int) -> int:
        """Bytes of a cache of `room` bytes that states behind cached prefixes take on this rank."""
        return snapshot_bytes(self.cache_groups, room)


@dataclass(frozen=True)
class ModelRequirements:
    """Sizes of a model.

    Attributes:
        architecture: as the checkpoint names it.
        implementation: what serves it: our own file, or transformers' layers.
        num_parameters: tied embeddings counted once; layers that are not loaded are not counted.
        num_active_parameters: parameters that a token of a text passes: not all experts of a mixture, and no tower.
        num_tower_parameters: parameters that pictures pass, with the projector behind the tower; 0 where none are seen.
        num_linear_parameters: parameters that are rounded while loading (no embedding, head or router).
        num_layers: layers that have a cache; an index of attention is a part of one.
        max_model_len: longest context in tokens.
        weight_bytes: bytes of all weights by number format. Those of `ROUNDED_TO` leave all but linears and experts in
            bfloat16; the published format is there if the checkpoint is quantized and can be read: in the tensors that
            layers hold, whose scales may be wider than those of the files.
        published_format: the method by which the checkpoint is quantized, such as "fp8" or "awq"; "gguf" is a file of
            packed types, and None no method.
        held_format: platform, or None for this machine -> what an engine holds the published weights in there, one of
            `weight_bytes`.
        why_not_kept: platform, or None for this machine -> why that is not the published format; None where it is, or
            where there is none.
        refusal: why an engine does not load this checkpoint; None if it does.
        warnings: what an engine logs about the config.
        on_rank: number of tensor-parallel ranks -> what each holds; None where they cannot share the model.
        in_stages: numbers of tensor-parallel ranks and of pipeline stages -> what a rank of the fullest stage holds;
            None where there are no such stages.
        cache_groups: layers by the tokens that they keep.
        kv_bytes_per_token: over all layers on this machine, by how numbers are cached, of a request within every
            window; float8 stands for the kind that a platform has.
    """

    architecture: str
    implementation: Implementation
    num_parameters: int
    num_active_parameters: int
    num_linear_parameters: int
    num_layers: int
    max_model_len: int
    weight_bytes: Mapping[str, int]
    published_format: str | None
    held_format: Callable[[Platform | None], str] = field(compare=False, repr=False)
    why_not_kept: Callable[[Platform | None], str | None] = field(compare=False, repr=False)
    refusal: str | None
    warnings: tuple[str, ...]
    on_rank: Callable[[int], RankShare | None] = field(compare=False, repr=False)
    in_stages: Callable[[int, int], RankShare | None] = field(compare=False, repr=False)
    cache_groups: tuple[CacheGroup, ...]
    kv_bytes_per_token: Mapping[CacheFormat, int]
    num_tower_parameters: int = 0

    def kv_bytes(self, num_tokens: int, cache: CacheFormat) -> int:
        """Bytes of cache that a request of `num_tokens` takes, all of it on this machine."""
        return _kv_bytes(self.cache_groups, num_tokens, cache, None)

    def snapshot_bytes(self, room: int) -> int:
        """Bytes of a cache of `room` bytes that states behind cached prefixes take; 0 where no layer keeps a state."""
        return snapshot_bytes(self.cache_groups, room)


def _kv_bytes(groups: tuple[CacheGroup, ...], num_tokens: int, cache: CacheFormat, platform: Platform | None) -> int:
    platform = platform or detect_platform()
    return sum(group.num_bytes(num_tokens, BLOCK_SIZE, cache, platform) for group in groups)


def model_requirements(
    checkpoint: Checkpoint,
    model_impl: str = "auto",
    *,
    num_drafts: int = 0,
    enable_expert_parallel: bool = False,
    enable_dp_attention: bool = False,
    num_context_ranks: int = 1,
    language_model_only: bool = False,
) -> ModelRequirements:
    """Numbers for planning: the model is built as for an engine, and counted; no weight is read.

    Args:
        model_impl: as the engine's: "auto", "atom" or "transformers".
        num_drafts: drafts of a request that a step may verify: layers with states keep one for each.
        enable_expert_parallel: ranks hold whole experts, not a part of each.
        enable_dp_attention: each rank is an engine, and these share the experts alone.
        num_context_ranks: neighbors among tensor-parallel ranks that share the context; their number divides these.
        language_model_only: what sees pictures is not built, and not counted.

    Raises:
        UnsupportedArchitectureError: the architecture is not implemented.
        CheckpointError: the config lacks a field, contradicts itself, or asks for what is not implemented; or ranks
            cannot share its context.
    """
    # Tables of angles are not counted, and need not be long.
    context = BuildContext(
        dtype=torch.bfloat16,
        max_model_len=BLOCK_SIZE,
        model_impl=model_impl,
        num_drafts=num_drafts,
        language_model_only=language_model_only,
        groups=UNSHARED.spreading_experts() if enable_expert_parallel or enable_dp_attention else UNSHARED,
    )
    published, refusal = quantization_method(checkpoint.config), None
    try:
        context = replace(context, quantization=stored_quantization(checkpoint))
        published = published or _packed_by(context.quantization)
        model = construct_model(checkpoint, context)
    except (UnsupportedQuantizationError, CheckpointError) as error:
        if published is None:
            raise
        refusal, context = str(error), replace(context, quantization=UNQUANTIZED)
        model = construct_model(checkpoint, context)
    if num_context_ranks > 1:
        construct_model(checkpoint, _on_rank(context, num_context_ranks, num_context_ranks))
    stored = _Stored(published, is_read=refusal is None)
    count = count_parameters(model)
    of_rank = functools.partial(_rank_share, checkpoint, context, stored, num_context_ranks=num_context_ranks)
    if enable_dp_attention:
        of_rank = functools.partial(_engine_share, checkpoint, context, stored)
    whole, why_not_kept = _share(model, count, stored), functools.partial(_why_not_kept, model, stored)
    return ModelRequirements(
        architecture=checkpoint.architecture,
        implementation=choose_implementation(checkpoint, model_impl),
        num_parameters=count.parameters,
        num_active_parameters=count.parameters - count.idle,
        num_linear_parameters=count.num_rounded,
        num_layers=sum(not isinstance(layer, LightningIndex) for layer in mixer_layers(model).values()),
        max_model_len=checkpoint.max_model_len,
        weight_bytes=whole.weight_bytes,
        published_format=published,
        # All that is stored in the published format stays so, or the model's size is that of what it computes in.
        held_format=lambda platform: published if published and why_not_kept(platform) is None else "bfloat16",
        why_not_kept=why_not_kept,
        refusal=refusal,
        warnings=config_warnings(model, checkpoint),
        in_stages=functools.cache(functools.partial(_fullest_stage, of_rank)),
        on_rank=functools.cache(lambda num_ranks: whole if num_ranks == num_context_ranks == 1 else of_rank(num_ranks)),
        cache_groups=whole.cache_groups,
        kv_bytes_per_token={cache: whole.kv_bytes(1, cache) for cache in PLANNED_CACHES},
        num_tower_parameters=num_tower_weights(model),
    )


def _packed_by(quantization: Quantization) -> str | None:
    """A file that no config declares quantized says it by the types of its matrices."""
    return quantization.name if isinstance(quantization, GGUFQuantization) and quantization.types else None


class _Stored(NamedTuple):
    """By which method a checkpoint is quantized, if it is, and whether its layers were built by what it says."""

    method: str | None
    is_read: bool


def _fullest_stage(of_rank: Callable[..., RankShare | None], num_ranks: int, num_stages: int) -> RankShare | None:
    """The first one, which has the embedding, or the last one, which has the head."""
    stages = [Stage(index, num_stages) for index in (0, num_stages - 1)]
    shares = [of_rank(num_ranks, stage) for stage in stages]
    found = [share for share in shares if share is not None]
    return max(found, key=lambda share: share.weight_bytes["bfloat16"]) if len(found) == len(stages) else None


def _rank_share(
    checkpoint: Checkpoint,
    context: BuildContext,
    stored: _Stored,
    num_ranks: int,
    stage: Stage = WHOLE,
    *,
    num_context_ranks: int,
) -> RankShare | None:
    if num_ranks % num_context_ranks:
        return None
    try:
        model = construct_model(checkpoint, _on_rank(context, num_ranks, num_context_ranks, stage))
    except CheckpointError:
        return None
    return _share(model, count_parameters(model), stored)


def _engine_share(
    checkpoint: Checkpoint, context: BuildContext, stored: _Stored, num_engines: int, stage: Stage = WHOLE
) -> RankShare | None:
    """What an engine of one rank holds, of so many that share their experts; None where there are stages."""
    if stage != WHOLE:
        return None
    try:
        model = construct_model(checkpoint, replace(context, groups=spread_experts(num_engines)))
    except CheckpointError:
        return None
    return replace(_share(model, count_parameters(model), stored), num_engines=num_engines)


def _on_rank(context: BuildContext, num_ranks: int, num_context_ranks: int, stage: Stage = WHOLE) -> BuildContext:
    """The first rank's, which holds the most."""
    return replace(context, groups=groups_of(context.groups, OneOf(0, num_ranks), stage, num_context_ranks))


def _why_not_kept(model: nn.Module, stored: _Stored, platform: Platform | None) -> str | None:
    platform = platform or detect_platform()
    if stored.method is None:
        return None
    if not stored.is_read:
        return "this version does not read it"
    with plans_remembered():
        found = [
            (one, one.packed_on and one.packed_on(platform)) for layer in loadable(model) for one in layer.weights()
        ]
    # The experts are most of a mixture: its size is the published one where they stay as they are stored.
    for weights, is_packed in found:
        if weights.chosen and not weights.is_stored_plain and not is_packed:
            return f"no kernel there reads experts that are stored as {weights.stored}"
    if not any(is_packed for _, is_packed in found):
        return "no kernel there reads linears that are stored so"
    return None


def _share(model: nn.Module, count: Count, stored: _Stored) -> RankShare:
    found = {"float32": count.parameters * 4, "bfloat16": count.parameters * 2}
    # A published format of the same name has a size of its own.
    found |= {name: count.bytes_rounded_to(one) for name, one in ROUNDED_TO.items() if name != stored.method}
    if stored.method is not None and stored.is_read:
        found[stored.method] = count.stored_bytes
    mixers = Counter(layer.problem for layer in mixer_layers(model).values())
    return RankShare(found, cache_groups(model), rank_work(model), mixers)
