"""`atom plan --simulate`: how long steps would take on a named system, and what they wait for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atom_core.config import ConfigError
from atom_server.cli.columns import columns
from atom_server.cli.plan.tables import cache_format, check_format, size

if TYPE_CHECKING:
    from atom_core.models import ModelRequirements, Prediction, Ranks, System

_SIZES = (
    ("-tp", "tensor", "ranks that share each layer"),
    ("-dp", "data", "engines that share the requests"),
    ("-pp", "pipeline", "stages that have some of the layers"),
)
BATCH_SIZES = (1, 8, 32, 128)
_PROMPTS = (1024, 8192)
# Flags that say nothing without `--simulate`, by their destinations.
_ONLY_SIMULATED = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "batch_sizes": "--batch-sizes",
}


def add_simulation(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """`--simulate` and the flags that go with it; `count` reads a number from 1."""
    group = parser.add_argument_group("simulation")
    group.add_argument(
        "--simulate",
        metavar="SYSTEM",
        help="how long steps would take, such as on 8xMI300X; another name lists those that are known",
    )
    for short, name, what in _SIZES:
        group.add_argument(
            short,
            f"--{name}-parallel-size",
            f"--{name}_parallel_size",
            type=count,
            metavar="N",
            help=f"{what}, of these ranks alone (default: 1, 2, 4 ... ranks that share each layer)",
        )
    group.add_argument(
        "--batch-sizes",
        "--batch_sizes",
        type=_batch_sizes,
        metavar="N,N...",
        help=f"requests at once, on all ranks together (default: {','.join(map(str, BATCH_SIZES))})",
    )


def check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that do not go together."""
    if args.decode_context_parallel_size > 1 and not args.on:
        raise ConfigError("--decode-context-parallel-size is for several devices: give --on ACCELERATOR")
    if args.enable_dp_attention and not args.on:
        raise ConfigError("--enable-dp-attention is for several devices: give --on ACCELERATOR")
    if args.enable_dp_attention and args.decode_context_parallel_size > 1:
        raise ConfigError("--enable-dp-attention has devices share experts alone: leave out one of both")
    if args.simulate is None:
        for name, flag in _ONLY_SIMULATED.items():
            if getattr(args, name):
                raise ConfigError(f"{flag} is for --simulate SYSTEM: give both, or --on ACCELERATOR for memory alone")
        if args.enable_expert_parallel and not args.on:
            raise ConfigError(
                "--enable-expert-parallel is for several devices: give --on ACCELERATOR or --simulate SYSTEM"
            )
        return
    for name in ("on", "memory"):
        if getattr(args, name):
            raise ConfigError(f"--simulate has a system of its own: leave --{name} out")


def simulated_lines(needs: ModelRequirements, system: System, args: argparse.Namespace) -> tuple[list[str], bool]:
    """The tables, and whether the model fits on any ranks.

    Raises:
        ConfigError: a format that the model has no plan for, or more ranks than the system has.
    """
    from atom_core.models import predict

    if not any(needs.kv_bytes_per_token.values()):
        raise ConfigError(f"--simulate predicts decodes, and {needs.architecture} is an encoder: leave it out")
    platform = system.device.accelerator.platform
    weights = args.weights or needs.held_format(platform)
    check_format("--weights", weights, needs.weight_bytes)
    cache = cache_format(args.kv_cache_dtype or "auto", weights)
    context = args.context or min(4096, needs.max_model_len)
    prompts = [length for length in _PROMPTS if length <= needs.max_model_len] or [needs.max_model_len]
    found: list[list[Prediction]] = []
    for ranks in _ranks(needs, system, args):
        tried = [
            predict(
                needs, system, ranks,
                batch_size=batch, context=context, weight_format=weights, cache=cache, prompts=prompts,
            )
            for batch in args.batch_sizes or BATCH_SIZES
        ]  # fmt: skip
        found += [[one for one in tried if one is not None]] if None not in tried else []
    if not found:
        raise ConfigError(f"no number of ranks of {system.name} can share this model evenly: try --data-parallel-size")
    lines = [
        f"simulated on {system.name}: weights {weights}, KV cache {cache.name}, context {context}",
        "",
        *columns(_rank_rows(found, prompts, context)),
        "",
    ]
    fitting = [one for row in found for one in row if one.num_requests]
    if not fitting:
        return [*lines, "the weights fit on none of these"], False
    return [*lines, *columns(_step_rows(fitting)), "", *_scaling_lines(found), *_remarks(system)], True


def _ranks(needs: ModelRequirements, system: System, args: argparse.Namespace) -> list[Ranks]:
    from atom_core.models import Ranks

    spread = args.enable_expert_parallel
    if spread and needs.num_active_parameters == needs.num_parameters:
        raise ConfigError("--enable-expert-parallel: this model has no experts; leave it out")
    tensor, data, stages = (getattr(args, f"{name}_parallel_size") for _, name, _ in _SIZES)
    if tensor or data or stages:
        ranks = Ranks(tensor or 1, data or 1, stages or 1, spread)
        if ranks.count > system.num_devices:
            raise ConfigError(
                f"{ranks.describe()} is {ranks.count} ranks, and {system.name} has {system.num_devices} devices: "
                "ask for fewer"
            )
        return [ranks]
    powers = range(system.num_devices.bit_length())
    return [Ranks(2**power, spread_experts=spread) for power in powers if 2**power <= system.num_devices]


def _rank_rows(found: Sequence[Sequence[Prediction]], prompts: Sequence[int], context: int) -> list[tuple[str, ...]]:
    heads = [f"prompt of {length}" for length in prompts]
    rows = [("ranks", "weights each", f"requests of {context}", *heads)]
    for first, *_ in found:
        times = [first.prompts[length] for length in prompts] if first.num_requests else []
        steps = [f"{_ms(step.seconds)}, {step.limit}" for step in times] or ["does not fit"] * len(prompts)
        rows.append((first.ranks.describe(), size(int(first.weight_bytes)), str(first.num_requests), *steps))
    return rows


def _step_rows(fitting: Sequence[Prediction]) -> list[tuple[str, ...]]:
    rows = [("ranks", "batch", "decode step", "tokens/s a user", "tokens/s a GPU", "waits most for", "fits")]
    for one in fitting:
        share = one.decode.parts[one.decode.limit] / one.decode.seconds
        rows.append(
            (
                one.ranks.describe(),
                str(one.batch_size),
                _ms(one.decode.seconds),
                f"{one.user_tokens:.0f}",
                f"{one.device_tokens:.0f}",
                f"{one.decode.limit} ({share:.0%})",
                "yes" if one.fits else f"{one.num_requests} at once",
            )
        )
    return rows


def _scaling_lines(found: Sequence[Sequence[Prediction]]) -> list[str]:
    """Where more ranks gain little, for each batch size that several numbers of ranks hold."""
    from atom_core.models import scaling_of

    lines = []
    for same_batch in zip(*found, strict=True):
        fitting = [one for one in same_batch if one.fits]
        if len(fitting) < 2:
            continue
        scaling = scaling_of(fitting)
        last = fitting[-1].ranks.count
        said = (
            f"every doubling up to {last} ranks gains a tenth or more"
            if scaling.stops_at is None
            else f"twice as many ranks as {scaling.stops_at} gain less than a tenth"
        )
        lines.append(f"batch {scaling.batch_size}: {said}; on {last} a step waits most for {scaling.limit}")
    return [*lines, ""] if lines else []


def _remarks(system: System) -> list[str]:
    device, links = system.device, system.links
    joined = [("inside a node", links.inside)] + ([("between nodes", links.between)] if links.between else [])
    return [
        f"{device.accelerator.name}: {device.read_rate / 1e12:.2f} TB/s and {device.product_rate(16) / 1e12:.0f} "
        f"TFLOP/s in 16 bits are reached; {device.reached}",
        *(f"links {where}: {one.bytes_per_second * one.share / 1e9:.0f} GB/s; {one.source}" for where, one in joined),
        "a prediction: docs/simulating.md says how far it is from what was measured",
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def _batch_sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        return tuple(int(part) for part in parts)
    raise argparse.ArgumentTypeError(f"{text!r} is not numbers from 1 between commas, such as 1,8,32")
