"""`atom trace` under the path that ROCm/ATOM has for it: ``python ATOM/tools/parse_trace.py FILE --layer 3``."""

from __future__ import annotations

import sys

from atom_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["trace", *sys.argv[1:]]))
