"""Flags of the commands that generate text in the terminal."""

from __future__ import annotations

import argparse

from atom_core import SamplingParams


def add_sampling_args(parser: argparse.ArgumentParser, *, temperature: float, max_tokens: int | None) -> None:
    """Give `parser` the flags that make `SamplingParams`. --seed is the engine's flag and seeds the samples too."""
    group = parser.add_argument_group("Sampling")
    group.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        help="0 always takes the likeliest token (default: %(default)s)",
    )
    group.add_argument("--top-p", "--top_p", type=float, default=1.0, dest="top_p", help="(default: %(default)s)")
    group.add_argument(
        "--top-k", "--top_k", type=int, default=-1, dest="top_k", help="-1 keeps all (default: %(default)s)"
    )
    shown = "whatever the context has left" if max_tokens is None else max_tokens
    group.add_argument(
        "--max-tokens", "--max_tokens", type=int, default=max_tokens, dest="max_tokens",
        help=f"tokens to generate at most (default: {shown})",
    )  # fmt: skip


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters from parsed flags."""
    return SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, max_tokens=args.max_tokens, seed=args.seed
    )
