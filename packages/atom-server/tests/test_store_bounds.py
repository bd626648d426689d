"""What the store of responses counts, bounds and refuses, to the character."""

from __future__ import annotations

import pytest

from atom_server.errors import APIError
from atom_server.responses import store as stores
from atom_server.responses.store import ResponseStore, StoredResponse


def refusal_of(call, *arguments, **options) -> APIError:
    with pytest.raises(APIError) as caught:
        call(*arguments, **options)
    return caught.value


def stored(name: str, *, status="completed", text="x", owner="") -> StoredResponse:
    output = [{"type": "message", "content": [{"text": text}]}]
    return StoredResponse({"id": name, "status": status, "output": output}, [{"role": "user"}], owner=owner)


def test_a_store_is_bounded_by_numbers_and_by_characters():
    assert (stores.MAX_RESPONSES, stores.MAX_CHARACTERS) == (1024, 67_108_864)
    assert stored("a", text="xyz").size == len("messagexyz") + len("user")
    assert stored("a").conversation == [{"role": "user"}, *stored("a").response["output"]]
    each = stored("a").size
    store = ResponseStore(max_responses=10, max_characters=3 * each)
    for name in "abc":
        store.put(stored(name))
    assert len(store) == 3
    store.put(stored("d"))
    assert [store.get(name) is not None for name in "abcd"] == [False, True, True, True]
    assert store._num_characters == 3 * each
    store.put(stored("d", text="xx"))
    assert [store.get(name) is not None for name in "bcd"] == [False, True, True]
    for name in "cd":
        store.remove(name)
    assert (len(store), store._num_characters) == (0, 0)


@pytest.mark.parametrize(("status", "runs"), [("queued", True), ("in_progress", True), ("completed", False)])
def test_a_response_runs_until_it_has_ended(status, runs):
    assert stored("a", status=status).is_running is runs


def test_who_makes_too_many_responses_at_once_is_told():
    store = ResponseStore(max_responses=9, max_running=3)
    store.put(stored("a", status="queued", owner="one"))
    store.put(stored("b", status="queued", owner="two"))
    error = refusal_of(store.put, stored("c", status="queued", owner="two"))
    told = "2 responses are being made in the background already (at most 3 may be): try again later"
    assert (error.status, error.code, error.message, error.headers) == (503, "queue_full", told, {"retry-after": "1"})
    store.put(stored("c", status="queued", owner="three"))
    assert refusal_of(store.put, stored("d", status="queued", owner="four")).status == 503
    store.put(stored("d", owner="four"))
    assert ResponseStore(max_responses=2, max_running=5)._max_running == 2


def test_what_is_not_found_is_told_with_the_beginning_of_its_id():
    error = refusal_of(ResponseStore().find, "x" * 200)
    assert error.message == f"there is no response {'x' * 128!r}: it was not stored, was deleted, or made room"
    assert (error.status, error.param, error.code) == (404, "response_id", "response_not_found")


def test_whoever_takes_the_largest_share_makes_room():
    store = ResponseStore(max_responses=4, max_characters=10_000)
    for name, owner, text in (("a", "many", "x"), ("b", "many", "x"), ("c", "long", "x" * 9000), ("d", "few", "x")):
        store.put(stored(name, owner=owner, text=text))
    store.put(stored("e", owner="few"))
    assert store.get("c", "long") is None  # nine tenths of the characters are more than half of the places
    store.put(stored("f", owner="few", status="queued"))
    assert [store.get(name, owner) is not None for name, owner in (("a", "many"), ("b", "many"), ("d", "few"))] == [
        True,
        True,
        False,
    ]
