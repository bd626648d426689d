"""`atom plan`: the command, and its tables."""

from atom_server.cli.plan.command import DESCRIPTION, EXAMPLES, HELP, USAGE, add_arguments, run

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]
