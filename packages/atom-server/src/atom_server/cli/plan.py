"""`atom plan`: what a model needs, and whether it fits, from its config alone."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HELP = "what a model needs, and whether it fits here"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = """\
Work out a model's memory from its config, without reading its weights: the weights in each number format, the KV
cache per token, and how many tokens and requests fit in a given memory."""
EXAMPLES = """\
examples:
  atom plan
  atom plan --model ./my-model --memory 16GiB
  atom plan --model ./my-model --context 8192 --requests 16
"""

_GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and what it should do."""
    parser.add_argument("--model", default="smollm2", help="model folder, .gguf file or name (default: %(default)s)")
    parser.add_argument(
        "--memory", type=_memory, metavar="SIZE", help="such as 16GiB (default: what is available here)"
    )
    parser.add_argument(
        "--context", type=_count, metavar="TOKENS", help="length of each request (default: the model's context)"
    )
    parser.add_argument("--requests", type=_count, default=1, help="requests at once (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 where the model does not fit in any number format."""
    from atom_core.models import model_requirements, open_checkpoint, resolve_model

    path = Path(args.model)
    checkpoint = open_checkpoint(path if path.exists() else resolve_model(args.model))
    needs = model_requirements(checkpoint)
    memory = args.memory or available_memory()
    context = args.context or needs.max_model_len
    print(
        f"{args.model}: {needs.architecture}, {needs.num_parameters / 1e6:.1f} M parameters, {needs.num_layers} layers"
    )
    print(f"context {needs.max_model_len} tokens at most; planned: {args.requests} x {context} tokens")
    if context > needs.max_model_len:
        print(f"warning: {context} tokens are more than the model was made for")
    print()
    lines, fits = plan_lines(needs.weight_bytes, needs.kv_bytes_per_token, args.requests * context, memory)
    print("\n".join(lines))
    return 0 if fits or memory is None else 1


def plan_lines(
    weights: Mapping[str, int], kv_per_token: Mapping[str, int], tokens: int, memory: int | None
) -> tuple[list[str], bool]:
    """A table over the formats of weights and cache, and whether any of its rows fits.

    Args:
        weights, kv_per_token: bytes by number format.
        tokens: that the cache should hold.
        memory: bytes; None where it is unknown.
    """
    rows = [("weights", "", "KV cache", "per token", "planned", "in all", "fits", "tokens that fit")]
    any_fits = False
    for weight_dtype, weight_bytes in weights.items():
        for cache_dtype, per_token in kv_per_token.items():
            total = weight_bytes + tokens * per_token
            fits = memory is not None and total <= memory
            any_fits |= fits
            room = "?" if memory is None else str(max(0, memory - weight_bytes) // per_token)
            verdict = "?" if memory is None else "yes" if fits else "no"
            sizes = (_size(weight_bytes), cache_dtype, _size(per_token), _size(tokens * per_token), _size(total))
            rows.append((weight_dtype, *sizes, verdict, room))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    end = (
        "memory unknown"
        if memory is None
        else f"memory: {_size(memory)}; activations and the process itself come on top"
    )
    return [*lines, "", end], any_fits


def available_memory() -> int | None:
    """Bytes that programs can still get on this machine; None where that is unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", _GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"


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
