"""Run a command and show its output as one line that changes: `python tools/progress_line.py TITLE COMMAND ...`.

Where the output is no terminal, only the title and the time taken are printed. A command that fails is shown whole.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

_CLEAR = "\r\x1b[K"


def run(title: str, command: Sequence[str]) -> int:
    """The command's exit status; 130 after Ctrl-C, which the command gets as well."""
    started, lines = time.monotonic(), []
    is_terminal = sys.stderr.isatty()
    clear = _CLEAR if is_terminal else ""
    _show(f"{title} ...", end="" if is_terminal else "\n")
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                if is_terminal and line.strip():
                    text = f"{title} ... {' '.join(line.split())}"
                    _show(clear + text[: shutil.get_terminal_size().columns - 1], end="")
    except KeyboardInterrupt:
        _show(f"{clear}{title}: stopped")
        return 130
    if process.returncode:
        _show(f"{clear}{''.join(lines)}{title} failed: {' '.join(command)}")
    else:
        _show(f"{clear}{title}: done in {time.monotonic() - started:.0f} s")
    return process.returncode


def _show(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2:]))
