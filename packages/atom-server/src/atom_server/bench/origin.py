"""When something was measured, and with which commit of this software."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path


def origin(known_commit: str | None = None) -> dict[str, str | None]:
    """Commit and date, as JSON values; `known_commit` where git is not there to tell it."""
    now = datetime.datetime.now(datetime.UTC)
    return {"commit": known_commit or commit_of(Path(__file__)), "date": now.strftime("%Y-%m-%d %H:%M UTC")}


def commit_of(file: Path) -> str | None:
    """Short hash of the checkout that has `file`, with "+" where tracked files differ from it; None outside of one.

    An installed package may lie in the checkout of something else, which does not track it.
    """
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    short = _git(file.parent, "rev-parse", "--short", "HEAD")
    if short is None:
        return None
    return short + ("+" if _git(file.parent, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
