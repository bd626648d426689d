"""``python -m atom_server.entrypoints.openai_server`` is ``atom serve``."""

from __future__ import annotations

import sys

from atom_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
