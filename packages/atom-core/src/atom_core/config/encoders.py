"""What an engine's settings are for an encoder, which keeps nothing of a text and computes it whole."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from atom_core.config.devices import traits_of
from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.sections import ModelConfig
    from atom_kernels.platform import Platform

# Settings of what an encoder does not have, and why it does not.
_OF_DECODERS = {
    **dict.fromkeys(("method", "draft_model", "speculative_config"), "writes no text that could be guessed"),
    **dict.fromkeys(("kv_transfer_config", "kv_events_config", "kv_offload_memory"), "keeps no cache"),
}


def of_encoder(args: EngineArgs, model: ModelConfig, platform: Platform, choices: list[str]) -> EngineArgs:
    """The settings with what follows from that: no prefixes, no graphs, and steps with room for the longest text.

    Raises:
        ConfigError: a setting is for other models, or leaves no room.
    """
    for name, why in _OF_DECODERS.items():
        if getattr(args, name) is not None:
            raise ConfigError(f"{name} is set, and {model.architecture} is an encoder, which {why}: leave it out")
    if args.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size is {args.pipeline_parallel_size}, and {model.architecture} is an encoder, which "
            "runs in one stage: leave it out"
        )
    longest, budget = model.max_model_len, args.max_num_batched_tokens
    if budget is not None and budget < longest:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}, and {model.architecture} is an encoder, whose texts of up to "
            f"max_model_len = {longest} tokens are computed whole: give at least as many, or a smaller max_model_len"
        )
    if budget is None and (own := traits_of(platform.device).token_budget) < longest:
        choices.append(f"max_num_batched_tokens = {longest}: a step has room for the longest text, which is not cut")
        budget = longest
    elif budget is None:
        budget = own
    return dataclasses.replace(
        args,
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
        enforce_eager=True,
        cudagraph_mode=None,
        cudagraph_capture_sizes=None,
    )
