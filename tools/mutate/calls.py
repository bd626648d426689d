"""`Calls`: which functions of the product are called, on any thread."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

_PRODUCT = ("/src/atom/", "/src/atom_")


class Calls:
    """The functions that were called since `begin`.

    From Python 3.12 on `sys.monitoring` tells the first call of each, which takes hardly any time; a profile function,
    as before it, is told each call of everything, and makes tests several times slower.

    Attributes:
        now: their code so far.
    """

    def __init__(self) -> None:
        self.now: set[CodeType] = set()
        self._watches = False
        self._monitoring: Any = getattr(sys, "monitoring", None)

    def watch(self) -> None:
        """Note calls from now on."""
        self._watches = True
        if self._monitoring is None:
            threading.setprofile(self._note_frame)
            sys.setprofile(self._note_frame)
            return
        tool, events = self._monitoring.PROFILER_ID, self._monitoring.events
        self._monitoring.use_tool_id(tool, "tools.mutate")
        for event in (events.PY_START, events.PY_RESUME):
            self._monitoring.register_callback(tool, event, self._note_first)
        self._monitoring.set_events(tool, events.PY_START | events.PY_RESUME)

    def begin(self) -> set[CodeType]:
        """Start anew; what was called before."""
        before, self.now = self.now, set()
        if self._watches and self._monitoring is not None:
            self._monitoring.restart_events()
        return before

    def stop(self) -> None:
        """Note nothing more."""
        if not self._watches:
            return
        if self._monitoring is None:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        else:
            self._monitoring.set_events(self._monitoring.PROFILER_ID, 0)

    def _note_frame(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._note(frame.f_code)

    def _note_first(self, code: CodeType, place: int) -> Any:
        self._note(code)
        return self._monitoring.DISABLE

    def _note(self, code: CodeType) -> None:
        if any(folder in code.co_filename for folder in _PRODUCT):
            self.now.add(code)
