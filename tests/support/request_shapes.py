"""Shapes of requests: bodies made of a few values with sizes, and a search among them that climbs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fuzzed_requests import GOOD_BODIES
from fuzzed_values import HostileValues, as_json

_UNITS = ("a", "a ", "word ", "中", "\n", '"', "\u0301", "<", "{{", ",", "1", "é ", "🏴", "tool_call ", "\\", "   ")
_NUMBERS = (0, 1, -1, 1.5, 7, 20, 100, 10**9, 2**31 - 1, 2**63 - 1, 10**30)
# Small texts of several kinds, and numbers that take long to read: halfway between two floats, or smaller than most.
_VALUES = ("null", "true", "[]", "{}", '{"a" :1}', '"中"', r'"\u4e2d"', '"ab"', "7" * 19, "7" * 4000)
_VALUES += ("1e-300", "0." + "7" * 17, "9007199254740993e0", "7.7e-320")
_BRACKETS = (("[", "]"), ('{"a":', "}"), ('{"a" :', "}"), ('[{"items":', "}]"))
_LONGEST = 2**20  # the largest count of any value; sizes are limited beside it
_BEST_KEPT = 4


@dataclass(frozen=True)
class Plain:
    """A value without a size, as JSON."""

    json: str


@dataclass(frozen=True)
class Text:
    """`count` times the same characters."""

    unit: str
    count: int


@dataclass(frozen=True)
class Many:
    """A list of `count` equal values."""

    item: Shape
    count: int


@dataclass(frozen=True)
class Fields:
    """An object of `count` numbered names with equal values."""

    value: Shape
    count: int


@dataclass(frozen=True)
class Nested:
    """A value within as many lists or objects."""

    opening: str
    closing: str
    count: int
    value: Shape


@dataclass(frozen=True)
class Object:
    """An object with these fields, or a list with these entries where `names` is None."""

    names: tuple[str, ...] | None
    values: tuple[Shape, ...]


Shape = Plain | Text | Many | Fields | Nested | Object


def written(shape: Shape) -> str:
    """The shape as JSON."""
    match shape:
        case Plain(json):
            return json
        case Text(unit, count):
            return f'"{as_json(unit)[1:-1] * count}"'
        case Many(item, count):
            return f"[{','.join([written(item)] * count)}]"
        case Fields(value, count):
            text = written(value)
            return "{" + ",".join(f'"k{number}":{text}' for number in range(count)) + "}"
        case Nested(opening, closing, count, value):
            return opening * count + written(value) + closing * count
        case Object(None, values):
            return f"[{','.join(map(written, values))}]"
        case Object(names, values):
            pairs = zip(names, values, strict=True)
            return "{" + ",".join(f"{as_json(name)}:{written(value)}" for name, value in pairs) + "}"


def size_of(shape: Shape) -> int:
    """About how long the JSON is, without writing it."""
    match shape:
        case Plain(json):
            return len(json)
        case Text(unit, count):
            return len(as_json(unit)) * count + 2
        case Many(item, count):
            return (size_of(item) + 1) * count + 2
        case Fields(value, count):
            return (size_of(value) + 12) * count + 2
        case Nested(opening, closing, count, value):
            return (len(opening) + len(closing)) * count + size_of(value)
        case Object(names, values):
            return sum(map(len, names or ())) + sum(size_of(value) + 5 for value in values) + 2


def shape_of(value: Any) -> Shape:
    """The shape of a value that is there already."""
    match value:
        case str():
            return Text(value, 1)
        case list():
            return Object(None, tuple(map(shape_of, value)))
        case dict():
            return Object(tuple(value), tuple(map(shape_of, value.values())))
    return Plain(as_json(value))


@dataclass(frozen=True)
class Found:
    """A request and how much it cost."""

    cost: float
    path: str
    body: Object

    @property
    def content(self) -> bytes:
        return written(self.body).encode()


class ShapeSearch:
    """Draws requests, learns what each cost, and goes on from the dearest of each route.

    Args:
        document: the server's OpenAPI document, whose fields are filled.
        seed: decides what is drawn; the same costs then give the same requests.
        largest: bytes of a body.
    """

    def __init__(self, document: dict[str, Any], seed: int, *, largest: int) -> None:
        self._draw = random.Random(seed)
        self._values = HostileValues(self._draw)
        self._largest = largest
        bodies = {path: document["paths"][path]["post"]["requestBody"]["content"] for path in GOOD_BODIES}
        self._fields = {path: body["application/json"]["schema"]["properties"] for path, body in bodies.items()}
        self._best: dict[str, list[Found]] = {path: [] for path in GOOD_BODIES}

    def run(self, number: int, cost: Callable[[str, bytes], float]) -> Iterator[Found]:
        """Each of `number` requests with what `cost` says of it."""
        for _ in range(number):
            path = self._draw.choice(list(GOOD_BODIES))
            body = self._next(path)
            found = Found(cost(path, written(body).encode()), path, body)
            self._best[path] = sorted([*self._best[path], found], key=lambda each: -each.cost)[:_BEST_KEPT]
            yield found

    def _next(self, path: str) -> Object:
        best = self._best[path]
        body = self._draw.choice(best).body if best and self._draw.random() < 0.7 else self._good(path)
        for _ in range(self._draw.choice([1, 1, 2, 3])):
            changed = self._changed(path, body)
            if size_of(changed) <= self._largest:
                body = changed
        return body

    def _good(self, path: str) -> Object:
        shape = shape_of(self._draw.choice(GOOD_BODIES[path]))
        assert isinstance(shape, Object)
        return shape

    def _changed(self, path: str, body: Object) -> Object:
        how = self._draw.random()
        if how < 0.4:
            return self._filled(path, body)
        if how < 0.5 and len(body.values) > 2:
            place = self._draw.randrange(len(body.values))
            return _without(body, place)
        changed = self._within(body)
        return changed if isinstance(changed, Object) else body

    def _filled(self, path: str, body: Object) -> Object:
        """With another value of a field that the route knows, or of none that it does."""
        fields = self._fields[path]
        name = self._draw.choice(list(fields)) if self._draw.random() < 0.95 else "unknown"
        value = self._of_schema(fields.get(name, {}))
        if body.names is not None and name in body.names:
            body = _without(body, body.names.index(name))
        return Object((*(body.names or ()), name), (*body.values, value))

    def _within(self, shape: Shape) -> Shape:
        """Changed somewhere inside: another size, another value, or a list of what was one."""
        draw = self._draw
        match shape:
            case Object(names, values) if values:
                place = draw.randrange(len(values))
                return Object(names, (*values[:place], self._within(values[place]), *values[place + 1 :]))
            case Many(item, count) if draw.random() < 0.4:
                return Many(self._within(item), count)
            case Fields(value, count) | Nested(_, _, count, value) if draw.random() < 0.4:
                return replace(shape, value=self._within(value))
            case Text() | Many() | Fields() | Nested() if draw.random() < 0.8:
                return replace(shape, count=min(_LONGEST, max(1, round(shape.count * draw.choice([0.5, 2, 4, 16])))))
            case Plain(json) if json.lstrip("-").isdecimal() and draw.random() < 0.6:
                return Plain(str(int(json) * draw.choice([2, 4, 16]) + draw.choice([0, 1])))
        if draw.random() < 0.3:
            return Many(shape, self._count(_LONGEST))
        return self._any()

    def _count(self, most: int) -> int:
        """Any order of magnitude, and often the bound itself."""
        if self._draw.random() < 0.3:
            return max(1, min(most, _LONGEST))
        return round(max(1, min(most, _LONGEST)) ** self._draw.random())

    def _any(self, depth: int = 0) -> Shape:
        draw = self._draw
        kinds: list[Callable[[], Shape]] = [
            lambda: Plain(str(draw.choice(_NUMBERS))),
            lambda: Plain(draw.choice(_VALUES)),
            lambda: Text(draw.choice(_UNITS), self._count(_LONGEST)),
            lambda: Nested(*draw.choice(_BRACKETS), self._count(500), Plain("1")),
            lambda: Plain(as_json(draw.choice([self._values.schema, self._values.constraint])())),
        ]
        if depth < 3:
            kinds += [
                lambda: Many(self._any(depth + 1), self._count(_LONGEST >> 4 * depth)),
                lambda: Fields(self._any(depth + 1), self._count(_LONGEST >> 4 * depth)),
            ]
        shape = draw.choice(kinds)()
        return shape if size_of(shape) <= self._largest else Plain("0")

    def _of_schema(self, schema: dict[str, Any], depth: int = 0) -> Shape:
        """Filled as `schema` allows, in any order of magnitude."""
        draw = self._draw
        if depth == 0 and draw.random() < 0.1:
            return self._any()
        if "anyOf" in schema or "oneOf" in schema:
            return self._of_schema(draw.choice(schema.get("anyOf") or schema["oneOf"]), depth + 1)
        if "const" in schema or "enum" in schema:
            return Plain(as_json(draw.choice([schema["const"]] if "const" in schema else schema["enum"])))
        match schema.get("type"):
            case "integer" | "number":
                low, high = schema.get("minimum", 0), schema.get("maximum", 10**9)
                return Plain(as_json(draw.choice([low, high, min(high, max(low, self._count(int(max(1, high)))))])))
            case "string":
                return Text(draw.choice(_UNITS), self._count(schema.get("maxLength", _LONGEST)))
            case "boolean":
                return Plain(draw.choice(["true", "false"]))
            case "array":
                most = schema.get("maxItems", _LONGEST >> 4 * depth)
                return Many(self._of_schema(schema.get("items") or {}, depth + 1), self._count(most))
            case "object" if depth < 8:
                known, needed = schema.get("properties", {}), schema.get("required", ())
                names = [name for name in known if name in needed or draw.random() < 0.3]
                if not names:
                    return Fields(self._any(2), self._count(schema.get("maxProperties", _LONGEST >> 4)))
                return Object(tuple(names), tuple(self._of_schema(known[name], depth + 1) for name in names))
        return self._any(1)


def _without(body: Object, place: int) -> Object:
    names = None if body.names is None else body.names[:place] + body.names[place + 1 :]
    return Object(names, body.values[:place] + body.values[place + 1 :])
