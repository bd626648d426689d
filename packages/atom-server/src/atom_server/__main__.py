"""``python -m atom_server`` is the `atom` command."""

from __future__ import annotations

import sys

from atom_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
