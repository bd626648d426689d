"""Enums as pybind11 makes them: they have `.value` and `.name`, and are no integers for `==`."""

from __future__ import annotations

from typing import Any, ClassVar


class BoundEnum:
    """One enum class of the C++ library; `ActivationType(0)` and `ActivationType.Silu` are the same member.

    A subclass lists its members in `__members__`, made by `bound_enum`.
    """

    __members__: ClassVar[dict[str, Any]] = {}

    def __init__(self, value: int) -> None:
        self.value = int(value)

    @property
    def name(self) -> str:
        """The member's name, "???" for a value without one, as pybind11 says it."""
        return next((name for name, member in self.__members__.items() if member.value == self.value), "???")

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


def bound_enum(name: str, **values: int) -> type[BoundEnum]:
    """A class with one member for each value."""
    made = type(name, (BoundEnum,), {"__members__": {}})
    for member, value in values.items():
        made.__members__[member] = made(value)
        setattr(made, member, made.__members__[member])
    return made
