"""`atom chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from atom_core import EngineArgs
from atom_server.cli.logs import configure_logging
from atom_server.cli.terminal.sampling_args import add_sampling_args, sampling_params

HELP = "talk to a model in the terminal"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = "Talk to a model. Ctrl-C stops an answer; /clear forgets the conversation; /exit or Ctrl-D ends."
SETTINGS = (EngineArgs,)
EXAMPLES = """\
examples:
  atom chat
  atom chat --model ./my-model --system "Answer in one sentence."
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The system message, then sampling, then the engine."""
    parser.add_argument("--system", metavar="TEXT", help="instructions that every conversation begins with")
    add_sampling_args(parser, temperature=0.7, max_tokens=None)
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    configure_logging("warning")
    engine_args = EngineArgs.from_cli_args(args)

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  line editing and history for input()

    from atom_server.cli.terminal.conversation import talk

    asyncio.run(talk(engine_args, sampling_params(args), args.system))
    return 0
