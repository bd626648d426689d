"""Parses the command line and hands over to one of explain, check, bench, tune."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atom_kernels.aiter.api import RELEASES
from atom_kernels.cli import bench, check, explain, tune
from atom_kernels.operator import BACKEND_ORDER
from atom_kernels.platform import AITER_ARCHES, Platform, detect_platform, use_platform
from atom_kernels.registry import all_ops

_EPILOG = """\
examples:
  python -m atom_kernels explain                 what runs here, and why the rest does not
  python -m atom_kernels explain linear          the same for one operator
  python -m atom_kernels explain --platform gfx942 --aiter pypi    what would run on an MI300X with that AITER
  python -m atom_kernels check                   every backend that runs here against the reference
  python -m atom_kernels check rms_norm -v       one operator, each case printed
  python -m atom_kernels check --backend aiter   one backend, with all that an issue about it should say
  python -m atom_kernels bench linear --rows 1   time, share of this machine's roofline, ratio to torch
  python -m atom_kernels tune moe_experts        the best tiles on this GPU, into the file of its configurations
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 fine, 1 a check failed, 2 a wrong command line."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "tune":
        options = {"models": arguments.model, "rows": arguments.rows, "folder": arguments.output}
        return tune.run(arguments.op, detect_platform(), **options)
    ops = all_ops()
    unknown = [name for name in arguments.op if name not in ops]
    if unknown:
        print(f"no operator {', '.join(unknown)}; there are: {', '.join(sorted(ops))}", file=sys.stderr)
        return 2
    chosen = [ops[name] for name in arguments.op or ops]
    if arguments.command == "explain":
        return _explain(chosen, arguments.platform, arguments.aiter)
    platform, backend = detect_platform(), arguments.backend
    reason = backend and platform.why_not(backend)
    if reason:
        print(f"{backend} cannot run here: {reason}", file=sys.stderr)
        return 2
    if arguments.command == "check":
        return check.run(chosen, platform, verbose=arguments.verbose, only_backend=backend)
    return bench.run(chosen, platform, rows=arguments.rows, seconds=arguments.seconds, only_backend=backend)


def _explain(chosen: Sequence[Any], arch: str | None, release: str) -> int:
    if arch is None:
        return explain.run(chosen, detect_platform())
    with use_platform(Platform.rocm(arch, release=release)) as platform:
        return explain.run(chosen, platform, is_simulated=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m atom_kernels",
        description="Which kernel runs what on this machine, whether it is right, and how fast it is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="explain|check|bench|tune")
    explain_parser = commands.add_parser(
        "explain", help="print every row of every plan on this machine, and why other backends were passed over"
    )
    explain_parser.add_argument("--platform", choices=tuple(AITER_ARCHES), help="an AMD GPU, instead of this machine")
    explain_parser.add_argument(
        "--aiter", choices=RELEASES, default="git", help="the AITER that is on it (default %(default)s)"
    )
    check_parser = commands.add_parser(
        "check", help="compare every usable backend with the reference over odd shapes and every dtype"
    )
    check_parser.add_argument("-v", "--verbose", action="store_true", help="print each case, not only failures")
    bench_parser = commands.add_parser(
        "bench",
        help="time every usable backend: microseconds, share of the roofline measured in the same run, ratio to torch",
    )
    bench_parser.add_argument("--rows", type=_positive, metavar="N", help="only the problems with this many rows")
    bench_parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="S", help="time spent on each case (default %(default)s)"
    )
    tune_parser = commands.add_parser(
        "tune", help="measure candidates for launches on this GPU and file the best, read when plans are prepared"
    )
    tune_parser.add_argument("--model", action="append", default=[], metavar="M", help="only the shapes of this model")
    tune_parser.add_argument("--rows", type=_positive, nargs="+", default=[], metavar="N", help="tune at these rows")
    tune_parser.add_argument("--output", type=Path, metavar="FOLDER", help="of the files, instead of the package's")
    for sub_parser in (check_parser, bench_parser):
        sub_parser.add_argument("--backend", choices=BACKEND_ORDER, help="only this one")
    for sub_parser in (explain_parser, check_parser, bench_parser, tune_parser):
        sub_parser.add_argument("op", nargs="*", metavar="OP", help="operators by name; none means all of them")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
