"""Whole answers: large ones are written and encoded beside the event loop, which would stand still for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from atom_server.generation.collect import Collected

# So many tokens and log-probabilities are written in a millisecond or two, which is not worth a thread.
MAX_AT_ONCE = 512
# No other thread runs while the encoder works: lists are encoded in parts.
_MAX_ITEMS = 128

T = TypeVar("T")


async def written(choices: Sequence[Collected], write: Callable[[], T]) -> T:
    """What `write` makes of `choices`. It may run in a thread, so it must not touch what other requests use."""
    if sum(choice.size for choice in choices) <= MAX_AT_ONCE:
        return write()
    return await asyncio.to_thread(write)


async def encoded(choices: Sequence[Collected], write: Callable[[], Any]) -> bytes:
    """The JSON of what `write` makes of `choices`, as `written`."""
    return await written(choices, lambda: encode_in_parts(write()))


def packed(value: msgspec.Struct) -> msgspec.Raw:
    """A part of an answer as JSON, which takes a tenth of its memory."""
    return msgspec.Raw(encode_in_parts(value))


def encode_in_parts(value: Any) -> bytes:
    """The JSON of `value`. Long lists are encoded in parts, so that no call into the encoder takes long."""
    if isinstance(value, list):
        return _encode_list(value)
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        parts = {name: msgspec.Raw(encode_in_parts(field)) for name, field in fields if _may_be_long(field)}
        return msgspec.json.encode(msgspec.structs.replace(value, **parts) if parts else value)
    return msgspec.json.encode(value)


def _encode_list(values: list[Any]) -> bytes:
    if values and isinstance(values[0], msgspec.Struct) and any(map(_has_long_field, values)):
        parts = map(encode_in_parts, values)
    else:
        starts = range(0, len(values), _MAX_ITEMS)
        parts = (msgspec.json.encode(values[start : start + _MAX_ITEMS])[1:-1] for start in starts)
    return b"[" + b",".join(parts) + b"]"


def _has_long_field(value: Any) -> bool:
    return any(_may_be_long(getattr(value, name)) for name in value.__struct_fields__)


def _may_be_long(field: Any) -> bool:
    if isinstance(field, list):
        return len(field) > _MAX_ITEMS or bool(field and isinstance(field[0], msgspec.Struct))
    return isinstance(field, msgspec.Struct) and _has_long_field(field)
