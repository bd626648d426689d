"""`make_warmup`: what an engine's configuration leaves to a warm-up."""

from __future__ import annotations

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.compilation import EAGER, CompilationWatch
from atom_core.worker.model.loading_with_cache import LoadReport
from atom_core.worker.running_model import RunningModel
from atom_core.worker.warmup.steps_of_nobody import StepsOfNobody
from atom_core.worker.warmup.variants import StepLimits, Variant, step_variants
from atom_core.worker.warmup.warmup import Warmup

# Tokens of a step beside requests that run: more take longer, and launch what these do.
SLICE_TOKENS = 2048


def make_warmup(config: EngineConfig, running: RunningModel, loaded: LoadReport, watch: CompilationWatch) -> Warmup:
    """The warm-up of a model that runs; with no variants where `has_variants` says no."""
    speculation = config.speculation
    steps = StepsOfNobody(
        running,
        loaded.pages.specs,
        spare_block=loaded.size.spare_block,
        block_size=config.cache.block_size,
        vocab_size=config.model.vocab_size,
        drafts_by_model=speculation is not None and speculation.is_by_model,
        picture_size=_smallest_picture(config),
    )
    return Warmup(
        _variants(config, running, loaded),
        steps,
        running.steps.capture_next,
        watch,
        compiles_ahead=config.compile.level == EAGER,
        at_once=config.compile.warmup == "full",
    )


def has_variants(config: EngineConfig, *, launches_kernels: bool) -> bool:
    """Whether steps of nobody are run: where kernels are compiled when they are met, on one device.

    Several ranks capture graphs alone: each of their steps waits for all others, and no warm-up of steps has run on
    several GPUs yet.
    """
    return config.compile.warmup != "none" and launches_kernels and config.parallel.ranks_of_engine == 1


def _variants(config: EngineConfig, running: RunningModel, loaded: LoadReport) -> list[Variant]:
    if not has_variants(config, launches_kernels=running.steps.launches_kernels):
        return []
    speculation, picture = config.speculation, _smallest_picture(config)
    limits = StepLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=loaded.size.max_model_len,
        block_size=config.cache.block_size,
        num_drafts=0 if speculation is None else speculation.num_tokens,
        drafts_by_model=speculation is not None and speculation.is_by_model,
        max_num_samples=config.max_num_samples,
        picture_tokens=0 if picture is None else picture[2],
    )
    told_apart = set(running.model.sizes_told_apart(limits.max_num_tokens))
    variants = step_variants(limits, told_apart)
    if config.compile.warmup == "background":
        return [found for found in variants if found.num_tokens <= SLICE_TOKENS or found.num_tokens in told_apart]
    return variants


def _smallest_picture(config: EngineConfig) -> tuple[int, int, int] | None:
    """Height, width and tokens of it; None where the model sees none."""
    if config.images is None:
        return None
    spec = config.images.spec
    height, width = spec.fitted(1, 1)
    return height, width, spec.num_tokens(height, width)
