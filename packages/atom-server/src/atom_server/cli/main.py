"""`atom`: finds the sub-command, runs it, and turns errors into one readable ending."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atom_core import __version__
from atom_server import settings
from atom_server.cli import bench, completion, doctor, models, plan, profile, route, serve, trace
from atom_server.cli.settings_parser import SettingsParser
from atom_server.cli.terminal import chat, generate

_COMMANDS = (serve, route, chat, generate, models, plan, doctor, bench, profile, trace, completion)

_DESCRIPTION = "ATOM, an inference engine for large language models."
_EXAMPLES = """\
examples:
  atom serve                                serve the default model on http://127.0.0.1:8000
  atom serve --model ./my-model             serve a model folder, a .gguf file or a Hugging Face id
  atom chat                                 talk to a model in the terminal
  atom generate "The capital of France is"  complete one prompt
  atom plan --model ./my-model              what a model needs, and whether it fits
  atom doctor                               what this machine has, and what each operator runs on
  atom bench serve --max-concurrency 16     measure a running server under load
  atom profile --mark-trace                 record what a model runs; atom trace FILE breaks it down by modules
  atom serve --config atom.yaml             settings from a file; ATOM_MAX_MODEL_LEN=4096 is --max-model-len 4096
  source <(atom completion bash)            let Tab complete commands and flags

`atom COMMAND --help` explains each command.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        "atom", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"atom {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=SettingsParser
    )
    for module in _COMMANDS:
        name = module.__name__.rsplit(".", 1)[-1]
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            usage=f"atom {name} {module.USAGE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            structs=getattr(module, "SETTINGS", ()),
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code. Errors end with their cause as the last line, without a traceback."""
    parser = build_parser()
    if settings.is_completing():
        completion.complete(parser)
    args = parser.parse_args(arguments)
    try:
        if getattr(args, "print_config", False):
            print(*args.parser.settings_lines(args), sep="\n")
            return 0
        return args.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except Exception as error:
        if settings.debug():
            raise
        from atom_server.cli.endings import exit_code_of, failure_of

        failure = failure_of(error)
        print(f"atom {args.command}: {failure.line}", file=sys.stderr)
        return exit_code_of(failure)


if __name__ == "__main__":
    sys.exit(main())
