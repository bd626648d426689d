"""`atom generate`: one prompt, or a file of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from atom_core import EngineArgs
from atom_core.config import ConfigError
from atom_server.cli.logs import configure_logging
from atom_server.cli.terminal.sampling_args import add_sampling_args, sampling_params
from atom_server.cli.terminal.shown_files import add_shown_args, picture_options, shown_parts

HELP = "complete one prompt, or a file of them"
USAGE = "(PROMPT | --input FILE --output FILE) [--model MODEL] [flags]"
DESCRIPTION = """\
Complete one prompt and print the text as it comes, or answer every line of a file. A line is a request in OpenAI's
batch format, or an object with "prompt" or "messages" and whatever fields the server takes. Each answer becomes a line
of the other file as soon as it is there. The same command goes on where an earlier one was ended."""
SETTINGS = (EngineArgs,)
EXAMPLES = """\
examples:
  atom generate "The capital of France is" --max-tokens 16 --temperature 0
  atom generate --chat "Name three rivers."
  cat question.txt | atom generate -
  atom generate --image photo.jpg "What is in this picture?"
  atom generate --video film.mp4 "What happens here?"
  atom generate --input prompts.jsonl --output answers.jsonl --max-tokens 100
  jq -r .response.body.choices[0].text answers.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt or the files, then sampling, then the engine."""
    parser.add_argument("prompt", nargs="?", help="text to complete; - reads it from standard input")
    parser.add_argument("--input", type=Path, metavar="FILE", help="requests to answer, one in each line, as JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where their answers are added, one in each line")
    parser.add_argument("--chat", action="store_true", help="put prompts through the chat template, as a user's turn")
    add_shown_args(parser, "for the prompt, as a user's turn (--chat)")
    add_sampling_args(parser, temperature=1.0, max_tokens=64)
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Generate and print, or answer the file."""
    configure_logging("warning")
    if (args.input is None) != (args.output is None) or (args.prompt is None) == (args.input is None):
        raise ConfigError("give a prompt, or --input and --output")
    if (args.image or args.video) and args.input is not None:
        raise ConfigError("--image and --video go with a prompt; lines of --input have parts of their own")
    engine_args, params, options = EngineArgs.from_cli_args(args), sampling_params(args), picture_options(args)
    if args.input is not None:
        from atom_server.cli.terminal.file_answers import answer_file

        return answer_file(engine_args, params, options, args.input, args.output, is_chat=args.chat)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt

    from atom_server.cli.terminal.one_prompt import stream_text

    shown = shown_parts(args)
    return stream_text(engine_args, prompt, params, options, is_chat=args.chat or bool(shown), shown=shown)
