"""What one question may take: processor time and memory are counted, time on the clock ends the waiting alone."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits of a process that answers questions. They reach it as JSON on its command line.

    Attributes:
        cpu_seconds: processor time of one answer.
        memory_bytes: memory beside what the process has before its first question.
        kept_bytes: a process that has so much more than at its start makes room for a new one.
        clock_seconds: how long callers wait; on a machine so busy that the process hardly runs they come again later.
    """

    cpu_seconds: float
    memory_bytes: int
    kept_bytes: int
    clock_seconds: float

    def on_command_line(self) -> str:
        """These limits as an argument."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_command_line(cls, argument: str) -> Limits:
        """The limits that `on_command_line` wrote."""
        return msgspec.json.decode(argument, type=cls)
