"""Run tests and keep what became of them: `python -m tools.test_record NAME [--commit HASH] -- PYTEST ARGUMENTS`.

For tests that a machine of its own runs: with a GPU, or with a CPU whose instructions others lack. The record lies in
`benchmarks/results/tests-NAME-MACHINE.json`, with the commit, the day, the machine and each failure. The exit status
is pytest's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.report import save

ROOT = Path(__file__).resolve().parent.parent


def record(name: str, arguments: Sequence[str], *, commit: str | None = None) -> tuple[int, dict[str, Any]]:
    """Run pytest with `arguments`; its exit status, and what became of the tests, which are called `name`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdicts = Path(folder, "verdicts.json")
        command = [sys.executable, "-m", "pytest", *arguments]
        status = subprocess.run([*command, "--verdicts", str(verdicts)], cwd=ROOT).returncode
        found = json.loads(verdicts.read_text()) if verdicts.exists() else {}
    return status, {
        "benchmark": f"tests-{name}",
        "machine": machine.describe(commit) | machine.device(),
        "command": ["pytest", *arguments],
        "exit_status": status,
        "seconds": round(time.monotonic() - started),
        "passed": found.get("passed", 0),
        "skipped": found.get("skipped", 0),
        "failed": {test_id: said["line"] for test_id, said in found.get("failures", {}).items()},
    }


def main(words: Sequence[str]) -> int:
    place = words.index("--") if "--" in words else len(words)
    ours, arguments = words[:place], words[place + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m tools.test_record",
        description="Run tests and keep what became of them.",
        epilog="What follows -- is for pytest.",
    )
    parser.add_argument("name", help="what the tests are of, such as gpu")
    parser.add_argument("--commit", help="of this checkout, where git is not there to tell")
    parser.add_argument("--output", type=Path, help="JSON file (default: under benchmarks/results, by machine)")
    options = parser.parse_args(ours)
    status, document = record(options.name, arguments, commit=options.commit)
    print(f"written: {save(document, options.output)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
