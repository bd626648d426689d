"""``python -m atom_server.examples.profile_offline`` is ``atom profile``."""

from __future__ import annotations

import sys

from atom_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["profile", *sys.argv[1:]]))
