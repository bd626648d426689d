"""`--model-impl` of the commands that only look at a model."""

from __future__ import annotations

import argparse


def add_model_impl(parser: argparse.ArgumentParser) -> None:
    """The choice of code, as `atom serve` has it."""
    parser.add_argument(
        "--model-impl",
        "--model_impl",
        choices=("auto", "atom", "transformers"),
        default="auto",
        help="code that would run it, as for `atom serve` (default: %(default)s)",
    )
