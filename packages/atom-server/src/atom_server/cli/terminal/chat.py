"""`atom chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import asyncio

from atom_core import EngineArgs
from atom_server import settings
from atom_server.cli.logs import configure_logging
from atom_server.cli.terminal.sampling_args import add_sampling_args, sampling_params
from atom_server.cli.terminal.shown_files import add_shown_args, picture_options, shown_parts

HELP = "talk to a model in the terminal"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = """\
Talk to a model, of an engine that is started for it or of a server that runs. Ctrl-C stops an answer, Alt-Enter begins
another line, the up key brings back what was typed, /help tells the commands, and Ctrl-D ends."""
SETTINGS = (EngineArgs,)
EXAMPLES = """\
examples:
  atom chat
  atom chat --model ./my-model --system "Answer in one sentence."
  atom chat --image photo.jpg
  atom chat --video film.mp4
  atom chat --url http://127.0.0.1:8000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The system message and the server, then sampling, then the engine."""
    parser.add_argument("--system", metavar="TEXT", help="instructions that every conversation begins with")
    parser.add_argument(
        "--url", help="a server that speaks OpenAI's API, in place of an engine; --model is then a name that it knows"
    )
    parser.add_argument("--api-key", metavar="KEY", help="the server's; unset takes ATOM_API_KEY")
    add_shown_args(parser, "that goes with the first turn")
    add_sampling_args(parser, temperature=0.7, max_tokens=None)
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    configure_logging("warning")
    from atom_server.cli.terminal.chatting.talk import talk_to_engine, talk_to_server

    params, shown = sampling_params(args), shown_parts(args)
    if args.url is None:
        options, engine_args = picture_options(args), EngineArgs.from_cli_args(args)
        asyncio.run(talk_to_engine(engine_args, params, args.system, options=options, shown=shown))
    else:
        key = args.api_key or settings.api_key()
        asyncio.run(talk_to_server(args.url, params, args.system, key=key, model=args.model, shown=shown))
    return 0
