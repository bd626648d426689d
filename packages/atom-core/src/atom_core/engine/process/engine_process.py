"""`EngineProcess`: starts the engine's process, watches it, and ends it. Torch-free."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from atom_core import settings
from atom_core.config.engine_args import EngineArgs
from atom_core.engine.process.meeting_folder import MeetingFolder
from atom_core.engine.process.wire import EngineStart
from atom_core.failure import Failure, describe_exit


class EngineProcess:
    """The child, and the private folder with the sockets between us.

    Args:
        args: the arguments that the engine starts with.
        rank: its number among engines that share the requests.
        meeting: where those find each other that share their experts; None where they share none.

    Attributes:
        folder: readable by this user only; removed by `stop`.
    """

    def __init__(self, args: EngineArgs, rank: int, meeting: MeetingFolder | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix="atom-")  # mode 0700
        self._args, self._rank, self._meeting = args, rank, meeting
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = threading.Event()

    def spawn(self, model_path: Path, on_exit: Callable[[], None]) -> None:
        """Start the process; `on_exit` is called from a thread when it has ended, for whatever reason."""
        process = subprocess.Popen(
            [sys.executable, "-m", "atom_core.engine.process.core_process"],
            stdin=subprocess.PIPE,
            env=settings.child_environment(self._args.num_threads),
        )
        meeting_folder = None if self._meeting is None else self._meeting.path
        start = EngineStart(dataclasses.asdict(self._args), str(model_path), self.folder, self._rank, meeting_folder)
        # The pipe stays open as long as this process lives: when it closes, the child ends.
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(start) + b"\n")
                process.stdin.flush()
        self._process = process

        def watch() -> None:
            process.wait()
            self._has_ended.set()
            on_exit()

        threading.Thread(target=watch, name="engine-watch", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The id of the engine's process; None before it starts."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def describe_exit(self) -> Failure:
        """How the process ended."""
        code = None if self._process is None else self._process.poll()
        return Failure("engine", f"the engine's process {'is running' if code is None else describe_exit(code)}")

    def kill(self) -> None:
        """End the process at once, whatever it does; `on_exit` follows."""
        if self._process is not None:
            self._process.kill()

    def stop(self, grace: float) -> None:
        """Wait `grace` seconds for the process to end, then kill it; remove the folder. Blocks."""
        process = self._process
        if process is not None:
            if not self._has_ended.wait(grace):
                process.kill()
                self._has_ended.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)
