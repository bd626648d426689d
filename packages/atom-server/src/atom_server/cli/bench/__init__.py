"""`atom bench`: a file for each kind of measurement."""

from atom_server.cli.bench.command import DESCRIPTION, EXAMPLES, HELP, USAGE, add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]
