"""`option()`: a dataclass field that documents, checks and parses itself; flags and docs are derived from it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

Kind = Literal["text", "integer", "number", "switch", "integers", "bytes", "json", "words"]


class ConfigError(ValueError):
    """A setting that is not allowed. The message is one line: the setting, what is allowed, and what to do."""


@dataclasses.dataclass(frozen=True)
class Option:
    """What is known of one setting.

    Attributes:
        name: the field's name, in snake case.
        kind: how its value is read. The field's type decides, unless it is "bytes" or "words".
        default: None means that it is chosen at start, as `help` says.
        help: one sentence for people; also the generated documentation.
        section: heading under which it is documented.
        choices: allowed values, where they are few.
        minimum, maximum: inclusive bounds of numbers.
        within_cores: a number may not be larger than that of this machine's cores.
        short: a short flag, e.g. "-tp".
        read: makes a value of words, called with the name of the setting and what was given.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    section: str
    choices: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    within_cores: bool = False
    short: str | None = None
    read: Callable[[str, Any], Any] | None = None

    @property
    def flag(self) -> str:
        """The flag in kebab case."""
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> Any:
        """The value in its proper type; ConfigError where it is not allowed."""
        if value is None:
            if self.default is None:
                return None
            raise ConfigError(f"{self.name} must not be None; the default is {self.default!r}")
        value = (self.read or _READERS[self.kind])(self.name, value)
        if self.choices is not None and value not in self.choices:
            allowed = ", ".join(map(str, self.choices))
            raise ConfigError(f"{self.name} is {value!r}; allowed are {allowed}")
        for item in value if isinstance(value, tuple) else (value,):
            self._check_bounds(item)
        return value

    def _check_bounds(self, value: Any) -> None:
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{self.name} is {value}; it must be at least {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{self.name} is {value}; it must be at most {self.maximum:g}")
        if self.within_cores and value > (num_cores := os.cpu_count() or 1):
            raise ConfigError(f"{self.name} is {value}, more than this machine has cores: give at most {num_cores}")


def option(default: Any, help: str, **about: Any) -> Any:
    """A dataclass field that is also an `Option`, with `about` as further attributes of it."""
    return dataclasses.field(default=default, metadata={"option": {"help": help, **about}})


@cache  # types are resolved from text, field by field: it took most of the time of making settings
def options_of(struct: type) -> tuple[Option, ...]:
    """The options of a dataclass, in order."""
    types = get_type_hints(struct)
    return tuple(
        Option(
            name=field.name, default=field.default, **{"kind": _kind_of(types[field.name]), **field.metadata["option"]}
        )
        for field in dataclasses.fields(struct)
        if "option" in field.metadata
    )


def add_options(parser: argparse.ArgumentParser, struct: type, *, leave_out: Collection[str] = ()) -> None:
    """Give `parser` a flag for each option of `struct` but those to `leave_out`, in kebab case and in snake case.

    Flags that are not given are None in the parsed namespace, so that a default is told from a choice.
    """
    options = [entry for entry in options_of(struct) if entry.name not in leave_out]
    for section in dict.fromkeys(entry.section for entry in options):
        group = parser.add_argument_group(section)
        for entry in options:
            if entry.section == section:
                _add_flag(group, entry)


def _kind_of(annotation: Any) -> Kind:
    """How values of a field's type are read; None may stand beside it."""
    written = get_args(annotation)[0] if isinstance(annotation, UnionType) else annotation
    return _KINDS[get_origin(written) or written]


def _add_flag(group: argparse._ArgumentGroup, entry: Option) -> None:
    settings: dict[str, Any] = {"dest": entry.name, "default": None}
    if entry.kind == "switch":
        settings["action"] = argparse.BooleanOptionalAction
    elif entry.kind in ("integers", "words"):
        metavar = "N" if entry.kind == "integers" else "NAME=PATH"
        settings |= {"nargs": "+", "metavar": metavar, "type": _argument_reader(entry, lambda value: value)}
    else:
        settings |= {"metavar": entry.name.rsplit("_", 1)[-1].upper(), "type": _argument_reader(entry, entry.check)}
    flags = [flag for flag in (entry.short, entry.flag) if flag]
    group.add_argument(*flags, help=_help_text(entry), **settings)
    if "_" in entry.name:
        group.add_argument("--" + entry.name, help=argparse.SUPPRESS, **settings)


def _help_text(entry: Option) -> str:
    notes = []
    if entry.choices is not None:
        notes.append("one of " + ", ".join(map(str, entry.choices)))
    if entry.default is not None:
        notes.append(f"default: {entry.default}")
    text = entry.help + (f" ({'; '.join(notes)})" if notes else "")
    return text.replace("%", "%%")


def _argument_reader(entry: Option, read: Callable[[Any], Any]) -> Callable[[str], Any]:
    def reader(text: str) -> Any:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reader


def _read_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} is {value!r}; it must be text")
    return value


def _read_integer(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; it must be a whole number")
    return value


def _read_number(name: str, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number")
    return number


def _read_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False")
    return value


def _read_integers(name: str, value: Any) -> tuple[int, ...]:
    """`1 2 4`, `1,2,4`, `[1,2,4]`, or a sequence of numbers."""
    items = [value] if isinstance(value, str | int) else list(value)
    parts: list[Any] = []
    for item in items:
        parts += item.strip("[] ").replace(",", " ").split() if isinstance(item, str) else [item]
    return tuple(_read_integer(name, part) for part in parts)


def _read_bytes(name: str, value: Any) -> int:
    """A number of bytes, or text such as `2GiB`, `512M`."""
    if not isinstance(value, str):
        return _read_integer(name, value)
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:], 1)
    try:
        number = float(text.rstrip("KMGT"))
    except ValueError:
        number = float("nan")
    if not math.isfinite(number):
        raise ConfigError(f"{name} is {value!r}; it must be bytes, or such as 512MiB or 2GiB")
    return int(number * scale)


def _read_json(name: str, value: Any) -> dict[str, Any]:
    """An object, or text that is one in JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}; it must be an object of JSON")
    return value


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "text": _read_text,
    "integer": _read_integer,
    "number": _read_number,
    "switch": _read_switch,
    "integers": _read_integers,
    "bytes": _read_bytes,
    "json": _read_json,
}
_KINDS: dict[type, Kind] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "switch",
    tuple: "integers",
    Mapping: "json",
}
