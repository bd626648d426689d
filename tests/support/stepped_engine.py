"""An engine whose steps a test lets go one at a time: what happens between two of them can be counted.

`hold_steps` runs in the engine's process, `Steps` in the test's.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

_TIMEOUT_S = 30
_RUN_FIRST = "from stepped_engine import hold_steps\nhold_steps({address!r})\n"


class Held(NamedTuple):
    """An engine between two steps: samples by what they do, and blocks that somebody holds."""

    phases: dict[str, int]
    num_blocks_held: int
    is_done: bool


class Steps:
    """The steps of an engine that is about to be started by this process.

    Args:
        folder: `python_path` is to be in front of the variable of that name before the engine starts.
    """

    def __init__(self, folder: Path) -> None:
        self.python_path = [str(folder), str(Path(__file__).parent)]
        address = str(folder / "steps")
        (folder / "sitecustomize.py").write_text(_RUN_FIRST.format(address=address))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()

    def connect(self) -> None:
        """Once the engine has started."""
        self._listener.settimeout(_TIMEOUT_S)
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(_TIMEOUT_S)
        self._told = self._connection.makefile("r")

    def close(self) -> None:
        """The engine goes on by itself."""
        for end in (self._told, self._connection, self._listener):
            end.close()

    def until_held(self) -> Held:
        """Wait until the step that runs is over."""
        return Held(*self._next("step"))

    def until_asked(self) -> set[str]:
        """Wait until the engine has received a request; ids of its samples."""
        return set(self._next("added"))

    def until_told_to_end(self, sample_ids: set[str]) -> None:
        """Wait until the held engine, which takes messages before its next step, has received the end of samples."""
        while sample_ids:
            sample_ids = sample_ids - set(self._next("aborted"))

    def let_go(self) -> None:
        """Let the held engine tell its news and go on."""
        self._connection.sendall(b"\n")

    def one_more(self) -> Held:
        """Let the held engine do one step."""
        self.let_go()
        return self.until_held()

    def _next(self, kind: str) -> Any:
        while True:
            told, value = json.loads(self._told.readline())
            if told == kind:
                return value


def hold_steps(address: str) -> None:
    """Have the engine of this process, if it is one, wait after each step until it is let go."""
    if "atom_core.engine.process.core_process" not in sys.orig_argv:
        return
    from atom_core.engine.engine_core import EngineCore
    from atom_core.engine.process import wire

    connection, telling = socket.socket(socket.AF_UNIX), threading.Lock()
    connection.connect(address)

    def tell(kind: str, value: Any) -> None:
        with telling:
            connection.sendall(json.dumps([kind, value]).encode() + b"\n")

    class Announcing(queue.SimpleQueue):
        """The engine's inbox: what is told stands in it already."""

        def put(self, item: Any, *how: Any) -> None:
            super().put(item, *how)
            if isinstance(item, wire.AddRequests):
                tell("added", [sample.request_id for sample in item.submission.samples()])
            elif isinstance(item, wire.AbortRequests):
                tell("aborted", item.request_ids)

    def step_and_wait(core: EngineCore) -> Any:
        news = step(core)
        stats = core.stats()
        phases = Counter(state.phase for state in core.states())
        tell("step", [phases, stats.num_blocks - stats.num_free_blocks, not core.has_unfinished()])
        connection.recv(1)
        return news

    queue.SimpleQueue = Announcing
    step, EngineCore.step = EngineCore.step, step_and_wait
