"""What the store of responses keeps, and what makes room."""

from __future__ import annotations

import pytest

from atom_server.errors import APIError
from atom_server.response_store import ResponseStore, StoredResponse


def make_response(name, status="completed", text="x"):
    return StoredResponse({"id": name, "status": status, "output": []}, [{"content": text}])


def test_the_oldest_finished_response_makes_room():
    store = ResponseStore(max_responses=2)
    store.put(make_response("running", "in_progress"))
    for name in ("a", "b"):
        store.put(make_response(name))
    assert len(store) == 2
    assert store.get("running") is not None
    assert store.get("a") is None
    assert store.get("b") is not None


def test_long_texts_make_room_too():
    store = ResponseStore(max_responses=9, max_characters=10)
    for name in "abc":
        store.put(make_response(name, text="x" * 5))
    assert (store.get("a"), len(store)) == (None, 2)


def test_no_more_than_a_store_full_is_made_at_once():
    store = ResponseStore(max_responses=1)
    store.put(make_response("a", "in_progress"))
    with pytest.raises(APIError) as caught:
        store.put(make_response("b", "in_progress"))
    assert (caught.value.status, caught.value.code) == (503, "queue_full")


def test_what_is_not_there_is_not_found():
    store = ResponseStore()
    store.put(make_response("a"))
    store.remove("a")
    with pytest.raises(APIError) as caught:
        store.find("a")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")
