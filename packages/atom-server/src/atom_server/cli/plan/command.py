"""`atom plan`: what a model needs, and whether it fits, from its config alone."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atom_core.config import ConfigError, EngineArgs, check_num_states
from atom_core.garbage import no_collection
from atom_core.host_memory import available_memory
from atom_server.cli.model_impl import add_model_impl
from atom_server.cli.plan.simulated import add_simulation, check_flags, simulated_lines
from atom_server.cli.plan.tables import CACHE_WORDS, accelerator_lines, memory_lines

if TYPE_CHECKING:
    from atom_core.models import Accelerator, ModelRequirements

HELP = "what a model needs, and whether it fits here"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = """\
Work out a model's memory from its config, without reading its weights: the weights in each number format, the KV
cache per token, and how many tokens and requests fit in a given memory, or on accelerators. A checkpoint that the
engine would refuse is said to be refused, in the engine's words; its sizes are shown all the same. With --simulate, how
long steps would take on a system that need not be here, what they wait for, and where more ranks gain little."""
EXAMPLES = """\
examples:
  atom plan
  atom plan --model ./my-model --memory 16GiB
  atom plan --model ./my-model --context 8192 --requests 16
  atom plan --model Qwen/Qwen3-235B-A22B --on MI300X
  atom plan --model Qwen/Qwen3-235B-A22B --on MI300X --enable-expert-parallel
  atom plan --model deepseek-ai/DeepSeek-R1 --on H200 --enable-dp-attention
  atom plan --model deepseek-ai/DeepSeek-R1 --on H200 --decode-context-parallel-size 8
  atom plan --model ./my-model --on all --kv-cache-dtype fp8
  atom plan --model deepseek-ai/DeepSeek-R1 --simulate 8xMI300X --kv-cache-dtype fp8
"""

_GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and what it should do."""
    parser.add_argument(
        "--model",
        default="smollm2",
        help="model folder, .gguf file, name or Hugging Face id, of which only the config is downloaded "
        "(default: %(default)s)",
    )
    add_model_impl(parser)
    parser.add_argument(
        "--memory", type=_memory, metavar="SIZE", help="such as 16GiB (default: what is available here)"
    )
    parser.add_argument(
        "--on",
        metavar="ACCELERATOR",
        help="plan for 1 to 8 of MI300X, MI300A, MI325X, MI355X, H100, H200, B200, GB200, or all of these",
    )
    parser.add_argument(
        "--enable-expert-parallel",
        "--enable_expert_parallel",
        action="store_true",
        help="each of several accelerators holds whole experts, not a part of every expert: with --on or --simulate",
    )
    parser.add_argument(
        "--enable-dp-attention",
        "--enable_dp_attention",
        action="store_true",
        help="each of several accelerators attends to requests of its own, and all share the experts: with --on",
    )
    parser.add_argument(
        "--decode-context-parallel-size",
        "--decode_context_parallel_size",
        type=_count,
        default=1,
        metavar="N",
        help="accelerators that each keep a part of the tokens of latent attention: with --on (default: %(default)s)",
    )
    parser.add_argument("--weights", metavar="FORMAT", help="weights on accelerators (default: as engines hold them)")
    parser.add_argument(
        "--kv-cache-dtype",
        "--kv_cache_dtype",
        choices=CACHE_WORDS,
        metavar="DTYPE",
        help=f"of the KV cache: {', '.join(CACHE_WORDS)}; auto is that of the weights as they are computed with "
        "(default: all of them, and auto on accelerators)",
    )
    parser.add_argument(
        "--context", type=_count, metavar="TOKENS", help="length of each request (default: the model's context)"
    )
    parser.add_argument("--requests", type=_count, default=1, help="requests at once (default: %(default)s)")
    parser.add_argument(
        "--num-speculative-tokens",
        "--num_speculative_tokens",
        type=_count,
        default=0,
        metavar="N",
        help="drafts of a request in one step, for each of which some models keep a state (default: none)",
    )
    parser.add_argument(
        "--image-cache-memory",
        "--image_cache_memory",
        type=_memory,
        default=EngineArgs.image_cache_memory,
        metavar="SIZE",
        help="for what was made of pictures, where the model sees (default: 256MiB)",
    )
    add_simulation(parser, _count)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 where the model does not fit in any number format."""
    check_flags(args)
    # Half a million objects are made here and all are kept: collections would cost a tenth of the time.
    with no_collection():
        from atom_core.models import (
            UnknownAcceleratorError,
            UnknownSystemError,
            find_accelerators,
            find_system,
            model_requirements,
            open_checkpoint,
            resolve_config,
        )

        try:
            accelerators = find_accelerators(args.on) if args.on else ()
        except UnknownAcceleratorError as error:
            raise ConfigError(f"--on: {error}") from None
        try:
            system = find_system(args.simulate) if args.simulate else None
        except UnknownSystemError as error:
            raise ConfigError(f"--simulate: {error}") from None
        checkpoint, num_drafts = open_checkpoint(resolve_config(args.model)), args.num_speculative_tokens
        check_num_states(num_drafts, checkpoint.architecture)
        needs = model_requirements(
            checkpoint,
            args.model_impl,
            num_drafts=num_drafts,
            # A simulation spreads experts by itself, over engines too.
            enable_expert_parallel=args.enable_expert_parallel and system is None,
            enable_dp_attention=args.enable_dp_attention,
            num_context_ranks=args.decode_context_parallel_size,
        )
        if args.enable_dp_attention and needs.num_active_parameters == needs.num_parameters:
            raise ConfigError("--enable-dp-attention: this model has no experts; leave it out")
    print("\n".join(_heading(args.model, needs)))
    for line in needs.warnings:
        print(f"warning: {line}")
    if args.context and args.context > needs.max_model_len:
        print(f"warning: {args.context} tokens are more than the model was made for")
    print()
    if system is not None:
        lines, fits = simulated_lines(needs, system, args)
        print("\n".join(lines))
        return 0 if fits else 1
    if accelerators:
        return 0 if _print_for(accelerators, needs, args) else 1
    memory = args.memory or available_memory()
    context = args.context or needs.max_model_len
    lines, fits = memory_lines(
        needs,
        context,
        args.requests,
        memory=memory,
        kv_cache_dtype=args.kv_cache_dtype,
        image_cache_bytes=_image_cache_bytes(needs, args),
    )
    print("\n".join(lines))
    return 0 if fits or memory is None else 1


def _print_for(accelerators: Sequence[Accelerator], needs: ModelRequirements, args: argparse.Namespace) -> bool:
    """Print a table for each format in which some of the accelerators hold the weights; whether the model fits any."""
    by_format: dict[str, list[Accelerator]] = {}
    held_format = functools.cache(needs.held_format)  # several accelerators are of one architecture
    for accelerator in accelerators:
        by_format.setdefault(args.weights or held_format(accelerator.platform), []).append(accelerator)
    any_fits = False
    for place, (weights, alike) in enumerate(by_format.items()):
        lines, fits = accelerator_lines(
            needs,
            alike,
            weights=weights,
            kv_cache_dtype=args.kv_cache_dtype or "auto",
            contexts=[args.context] if args.context else _contexts(needs.max_model_len),
            flags=" and ".join(_flags(args)),
            image_cache_bytes=_image_cache_bytes(needs, args),
        )
        print("\n".join(["", *lines] if place else lines))
        any_fits |= fits
    return any_fits


def _image_cache_bytes(needs: ModelRequirements, args: argparse.Namespace) -> int:
    return args.image_cache_memory if needs.num_tower_parameters else 0


def _flags(args: argparse.Namespace) -> list[str]:
    """What starts the model on several accelerators."""
    size = args.decode_context_parallel_size
    return [
        "--tensor-parallel-size",
        *(["--enable-expert-parallel"] if args.enable_expert_parallel else []),
        *(["--enable-dp-attention"] if args.enable_dp_attention else []),
        *([f"--decode-context-parallel-size {size}"] if size > 1 else []),
    ]


def _heading(model: str, needs: ModelRequirements) -> list[str]:
    active = needs.num_active_parameters
    parameters = _number(needs.num_parameters) + " parameters"
    if active != needs.num_parameters:
        parameters += f" ({_number(active)} for each token)"
    lines = [f"{model}: {needs.architecture}, {parameters}, {needs.num_layers} layers"]
    lines.append(f"run by {needs.implementation.describe()}")
    if tower := needs.num_tower_parameters:
        lines.append(f"the tower of pictures and its projector have {_number(tower)} of these")
    lines.append(f"context {needs.max_model_len} tokens at most")
    kept = ((group.num_layers, group.spec.describe()) for group in needs.cache_groups)
    lines += [f"{num_layers} layers keep {what}" for num_layers, what in kept if what is not None]
    if needs.published_format:
        unknown = "" if needs.published_format in needs.weight_bytes else ", of a size that is not known"
        lines.append(f"published as {needs.published_format}{unknown}")
    if needs.refusal:
        lines.append(f"refused: {needs.refusal}")
    return lines


def _contexts(longest: int) -> list[int]:
    return sorted({min(4096, longest), min(32768, longest), longest})


def _number(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _memory(text: str) -> int:
    scales: dict[str, Any] = {"KIB": 2**10, "MIB": 2**20, "GIB": _GIB, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": _GIB}
    upper = text.strip().upper()
    suffix = next((suffix for suffix in scales if upper.endswith(suffix)), "")
    try:
        size = int(float(upper.removesuffix(suffix)) * scales.get(suffix, 1))
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 16GiB or 512MiB")
    return size


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
