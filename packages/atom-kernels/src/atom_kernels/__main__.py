"""``python -m atom_kernels``."""

from __future__ import annotations

import sys

from atom_kernels.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
