"""Run the checks on the files of a change: `python -m tools.changed_checks [--base REV]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tools.changed_tests import ROOT, changed_files


def checks_of(names: Sequence[str]) -> list[list[str]]:
    """The commands that check these files; import contracts are quick, and hold for all files together."""
    return [["ruff", "format", "--check", *names], ["ruff", "check", *names], ["lint-imports"], ["pyright", *names]]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every check passes; else 1, after all of them were run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="main", metavar="REV", help="what the change started from (default: main)")
    changed = changed_files(parser.parse_args(arguments).base)
    names = sorted(str(file.relative_to(ROOT)) for file in changed if file.suffix == ".py" and file.exists())
    if not names:
        print("No Python file differs.")
        return 0
    statuses = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in checks_of(names)]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
