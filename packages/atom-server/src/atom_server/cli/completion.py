"""`atom completion`: what a shell needs so that Tab completes commands, flags and files."""

from __future__ import annotations

import argparse

HELP = "let Tab complete commands and flags"
USAGE = "{bash,zsh,fish}"
DESCRIPTION = "Print a script that makes a shell complete commands, flags and files of atom."
EXAMPLES = """\
examples:
  source <(atom completion bash)                                   in ~/.bashrc
  source <(atom completion zsh)                                    in ~/.zshrc
  atom completion fish > ~/.config/fish/completions/atom.fish      once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that is to complete")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["atom"], True, args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that asks what may come next, and end the process."""
    import argcomplete

    argcomplete.autocomplete(parser)
