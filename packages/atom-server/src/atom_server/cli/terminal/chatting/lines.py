"""What the user types: lines with history and completion in a terminal, plain lines from a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from atom_core.settings import cache_dir
from atom_server.cli.terminal.chatting.conversation import COMMANDS


async def user_lines() -> AsyncIterator[str]:
    """Each line without its ends, until the end of input or Ctrl-C."""
    if not sys.stdin.isatty():
        # Reading blocks the loop: nothing else is going on between two turns.
        while (line := _read_line()) is not None:
            yield line
        return
    session = make_session(open_history(cache_dir() / "chat_history"))
    while True:
        try:
            yield (await session.prompt_async("> ")).strip()
        except (EOFError, KeyboardInterrupt):
            return


def make_session(history: History, **keywords: Any) -> PromptSession[str]:
    """Enter ends what is typed, and Alt-Enter begins another line of it; pasted text may have several."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    words = [command.partition(" ")[0] for command in COMMANDS]
    completer = WordCompleter(words, sentence=True)
    return PromptSession(history=history, multiline=True, key_bindings=keys, completer=completer, **keywords)


def open_history(path: Path) -> History:
    """What was typed before, in a file that nobody else can read; in memory alone where there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _read_line() -> str | None:
    """A line of a pipe; None at its end, or on Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input().strip()
    except (EOFError, KeyboardInterrupt):
        return None
    finally:
        signal.signal(signal.SIGINT, previous)
