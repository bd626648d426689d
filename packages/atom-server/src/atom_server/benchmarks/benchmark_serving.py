"""``python -m atom_server.benchmarks.benchmark_serving`` is ``atom bench serve``."""

from __future__ import annotations

import sys

from atom_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "serve", *sys.argv[1:]]))
