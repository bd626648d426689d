"""`atom generate`: one prompt, once."""

from __future__ import annotations

import argparse
import sys

from atom_core import EngineArgs
from atom_server.cli.logs import configure_logging
from atom_server.cli.terminal.sampling_args import add_sampling_args, sampling_params

HELP = "complete one prompt"
USAGE = "PROMPT [--model MODEL] [flags]"
DESCRIPTION = "Complete one prompt and print the text as it comes."
SETTINGS = (EngineArgs,)
EXAMPLES = """\
examples:
  atom generate "The capital of France is" --max-tokens 16 --temperature 0
  atom generate --chat "Name three rivers."
  cat question.txt | atom generate -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, then sampling, then the engine."""
    parser.add_argument("prompt", help="text to complete; - reads it from standard input")
    parser.add_argument(
        "--chat", action="store_true", help="put the prompt through the chat template, as a user's turn"
    )
    add_sampling_args(parser, temperature=1.0, max_tokens=64)
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Generate and print."""
    configure_logging("warning")
    engine_args = EngineArgs.from_cli_args(args)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt

    from atom_server.cli.terminal.engine_text import stream_text

    return stream_text(engine_args, prompt, sampling_params(args), is_chat=args.chat)
