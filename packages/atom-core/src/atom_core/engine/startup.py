"""The first steps of every engine: find the model, read what it says of itself, get its tokenizer. Torch-free."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from atom_core.settings import torchrun
from atom_core.tokenization import Tokenizer

if TYPE_CHECKING:
    from atom_core.config import EngineArgs, EngineConfig
    from atom_models import Checkpoint

logger = logging.getLogger(__name__)


def open_model(args: EngineArgs) -> Checkpoint:
    """Resolve `args.model` to a folder or file (downloading it where it is known by name) and read its description."""
    from atom_models import open_checkpoint

    if args.trust_remote_code:
        return open_checkpoint(_folder_as_data(args))
    if Path(args.model).exists():
        return open_checkpoint(args.model)
    from atom_models import resolve_model

    return open_checkpoint(resolve_model(args.model, revision=args.revision))


def _folder_as_data(args: EngineArgs) -> Path:
    from atom_core.config import ConfigError
    from atom_core.folder_code import as_data

    if (process := torchrun()) is not None and not process.is_on_one_host:
        raise ConfigError("trust_remote_code makes files on this node alone, and torchrun started others: leave it out")
    return as_data(Path(args.model))


def open_tokenizer(args: EngineArgs, checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer of `args`, or the model's own; None with `skip_tokenizer_init`, and for dummy weights without."""
    if args.skip_tokenizer_init:
        return None
    from atom_core.tokenization.hf_folder import has_tokenizer

    if (
        args.tokenizer is None
        and args.load_dummy
        and checkpoint.format != "gguf"
        and not has_tokenizer(checkpoint.path)
    ):
        return None
    return Tokenizer.of_model(checkpoint, args.tokenizer)


def resolve(args: EngineArgs, checkpoint: Checkpoint, *, data_parallel_rank: int = 0) -> EngineConfig:
    """The configuration of `args` on this machine. Imports torch, to look at the hardware.

    `data_parallel_rank` is the engine's number among those that share the requests.

    Environment variables that begin as ours do and that nothing reads are logged.
    """
    from atom_core.config import resolve_config
    from atom_kernels.platform import detect_platform
    from atom_models.architectures.registry import UnsupportedArchitectureError
    from atom_models.fallback.choice import choose_implementation
    from atom_models.quantization import UnsupportedQuantizationError, choose_quantization

    _tell_of_unread_variables()
    try:
        implementation = choose_implementation(checkpoint, args.model_impl)
        choose_quantization(checkpoint.config, args.quantization)
    except (UnsupportedArchitectureError, UnsupportedQuantizationError) as error:
        raise type(error)(f"{args.model}: {error}") from None
    if implementation.name == "transformers":
        args = _eager(args)
    config = resolve_config(args, checkpoint, detect_platform(), data_parallel_rank=data_parallel_rank)
    if config.parallel.ranks_of_engine > 1 or config.parallel.enable_dp_attention:
        _check_shared(config, checkpoint)
    return config


def _check_shared(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Raise, before processes are started, where ranks cannot share the model, or the one that drafts for it."""
    import torch

    from atom_models import BuildContext, open_checkpoint
    from atom_models.groups import UNSHARED
    from atom_models.layers.mixture.balance import place_with_copies
    from atom_models.model import stored_quantization
    from atom_models.requirements import check_shared
    from atom_models.requirements.sharing import spread_experts

    parallel = config.parallel

    def check(checkpoint: Checkpoint, quantization: str) -> None:
        context = BuildContext(
            quantization=stored_quantization(checkpoint, quantization),
            dtype=getattr(torch, config.model.dtype),
            cache=config.cache.format,
            block_size=config.cache.block_size,
            max_model_len=config.cache.block_size,  # tables of angles are not needed
            model_impl=config.model.model_impl,
            groups=spread_experts(parallel.sharing_experts) if parallel.enable_expert_parallel else UNSHARED,
            place_experts=place_with_copies(parallel.num_redundant_experts),
        )
        check_shared(
            *(checkpoint, context, parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
            num_context_ranks=parallel.decode_context_parallel_size,
        )

    check(checkpoint, config.model.quantization)
    speculation = config.speculation
    if speculation is not None and speculation.is_by_whole_model and speculation.model is not None:
        check(open_checkpoint(speculation.model), speculation.quantization)


def _eager(args: EngineArgs) -> EngineArgs:
    """The settings with which transformers' layers run: not compiled, captured or adapted, which want ours.

    On a CPU their decodes may be recorded: what they bring to Python is seen there.
    """
    from atom_core.config import ConfigError

    if args.enable_dp_attention:
        raise ConfigError("transformers' layers are not split: leave enable_dp_attention out")
    if args.level > 0:
        raise ConfigError(f"level is {args.level}, and transformers' layers are not compiled: leave it out")
    if args.enable_lora or args.lora_modules:
        raise ConfigError("transformers' layers take no adapters: leave enable_lora and lora_modules out")
    if args.cudagraph_mode not in (None, "none") or args.cudagraph_capture_sizes is not None:
        raise ConfigError("transformers' layers are not captured in graphs: leave the cudagraph settings out")
    return dataclasses.replace(args, cudagraph_mode="none")


def _tell_of_unread_variables() -> None:
    from atom_kernels import known_variables

    for line in known_variables.warnings():
        logger.warning("%s", line)
    if (line := known_variables.left_aside()) is not None:
        logger.info("%s", line)
