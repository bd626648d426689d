"""A search over shapes of requests for one that holds up the others: it climbs towards what held them up longest."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from fuzzed_requests import GOOD_BODIES
from loop_lag import LagProbe, send
from machine_speed import slowness
from request_shapes import Found, Many, Nested, Object, Plain, ShapeSearch, Text, shape_of, size_of, written

# What the event loop may do at once, and what others may have to wait while threads of its process work too, in
# seconds of a quiet machine.
MOST_OF_THE_LOOP = 0.06
MOST_SECONDS = 0.1
SEED = 23
LEAVE_AFTER = 0.5


class Lags:
    """How much a request takes of what it may keep a server's event loop from others; what seems long is sent again."""

    def __init__(self, server) -> None:
        self._server = server

    def __call__(self, path: str, content: bytes) -> float:
        share = self._once(path, content)
        for _ in range(2):  # collecting garbage of other tests is not of this one
            if share < 0.8:
                break
            share = min(share, self._once(path, content))
        return share

    def _once(self, path: str, content: bytes) -> float:
        with LagProbe(self._server) as probe:
            send(self._server, path, content, leave_after=LEAVE_AFTER)
            self._server.wait_until_idle(seconds=120)
        return max(probe.own / MOST_OF_THE_LOOP, probe.worst / MOST_SECONDS) / slowness()


@pytest.mark.timing
@pytest.mark.parametrize(
    ("number", "largest"), [(80, 2**20), pytest.param(2500, 2**25, marks=[pytest.mark.slow, pytest.mark.by_hand])]
)
def test_no_shape_of_a_request_holds_up_the_others(server, number, largest):
    document = httpx.get(server.url + "/openapi.json", timeout=60).json()
    server.post("/v1/completions", prompt="warm", max_tokens=1)
    search = ShapeSearch(document, SEED, largest=largest)
    longest = max(reported(search.run(number, Lags(server))), key=lambda each: each.cost)
    print(f"longest: {described(longest)}")
    assert longest.cost < 1, described(longest)


def reported(found: Iterator[Found]) -> Iterator[Found]:
    """The same, and for people each that comes near, as soon as it is found."""
    for place, each in enumerate(found):
        if each.cost > 0.5:
            print(f"{place}: {described(each)}")
        yield each


def described(found: Found) -> str:
    return f"{found.cost:.0%} of what it may by {found.path} {found.body}"[:1000]


def test_the_search_climbs_towards_what_costs_most():
    """Here words cost most, and a field is filled with few of them at first."""
    fields = {"user": {"type": "string", "maxLength": 20}}
    schema = {"content": {"application/json": {"schema": {"properties": fields}}}}
    paths = {"paths": {path: {"post": {"requestBody": schema}} for path in GOOD_BODIES}}

    def cost(path: str, content: bytes) -> float:
        return float(content.count(b"word "))

    assert max(found.cost for found in ShapeSearch(paths, 3, largest=10**6).run(1500, cost)) > 10_000


@pytest.mark.parametrize(
    ("shape", "json"),
    [
        (Many(Text("ab", 2), 2), '["abab","abab"]'),
        (Nested('{"a":', "}", 2, Plain("1")), '{"a":{"a":1}}'),
        (Object(("x", "y"), (Text('"', 1), Plain("2"))), '{"x":"\\"","y":2}'),
        (shape_of({"a": [1, None]}), '{"a":[1,null]}'),
    ],
)
def test_a_shape_is_written_as_json_of_about_its_size(shape, json):
    assert written(shape) == json
    assert len(json) <= size_of(shape) <= len(json) + 20
