"""What the store of responses keeps, and what makes room."""

from __future__ import annotations

import pytest

from atom_server.errors import APIError
from atom_server.responses.store import ResponseStore, StoredResponse


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


def test_responses_in_the_background_leave_places_to_others_however_many_are_kept():
    store = ResponseStore(max_running=2)
    for name in ("a", "done", "b"):
        store.put(make_response(name, "completed" if name == "done" else "in_progress"))
    with pytest.raises(APIError, match="at most 2 may be") as caught:
        store.put(make_response("c", "in_progress"))
    assert caught.value.headers["retry-after"]
    store.remove("a")
    store.put(make_response("c", "in_progress"))


class CountedItems(list):
    """Items that count how often somebody goes through them."""

    num_walks = 0

    def __iter__(self):
        type(self).num_walks += 1
        return super().__iter__()


def test_nothing_that_is_stored_is_gone_through_again():
    store = ResponseStore(max_responses=64)
    for number in range(64):
        response = make_response(str(number), "in_progress" if number % 2 else "completed")
        response.items = CountedItems(response.items)
        store.put(response)
    before = CountedItems.num_walks
    for number in range(100):
        store.put(make_response(f"new {number}"))
        store.get("1")
    store.remove("3")
    assert CountedItems.num_walks == before
    assert len(store) == 63


def test_a_response_that_came_to_its_end_is_counted_anew_and_can_make_room():
    store = ResponseStore(max_responses=2, max_characters=10)
    running = make_response("a", "in_progress")
    store.put(running)
    store.put(make_response("b", text="x" * 5))
    running.response = {"id": "a", "status": "completed", "output": [{"content": "x" * 9}]}
    store.changed(running)
    assert (store.get("b"), store.get("a")) == (None, running)
    store.put(make_response("c"))
    assert store.get("a") is None


def test_a_response_that_was_deleted_does_not_come_back_at_its_end():
    store = ResponseStore()
    running = make_response("a", "in_progress")
    store.put(running)
    store.remove("a")
    running.response = {"id": "a", "status": "cancelled", "output": []}
    store.changed(running)
    assert len(store) == 0


def test_a_response_that_ended_leaves_its_place_to_another():
    store = ResponseStore(max_responses=1)
    first = make_response("a", "in_progress")
    store.put(first)
    store.put(first)  # itself does not count
    first.response = {"id": "a", "status": "completed", "output": []}
    store.changed(first)
    store.put(make_response("b", "in_progress"))
    assert (store.get("a"), len(store)) == (None, 1)


def test_room_is_made_by_what_is_there_and_not_by_what_was():
    store = ResponseStore(max_characters=10)
    for number in range(20):
        store.put(make_response(str(number), text="x" * 5))
        if number > 1:
            store.remove(str(number))
    store.put(make_response("last", text="x" * 5))
    assert (store.get("1") is not None, len(store)) == (True, 2)


def test_what_is_not_there_is_not_found():
    store = ResponseStore()
    store.put(make_response("a"))
    store.remove("a")
    with pytest.raises(APIError) as caught:
        store.find("a")
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")


def owned(name, owner, status="completed", text="x"):
    response = make_response(name, status, text)
    response.owner = owner
    return response


def test_whoever_holds_most_makes_room():
    store = ResponseStore(max_responses=4)
    store.put(owned("a", "modest"))
    for number in range(9):
        store.put(owned(str(number), "greedy"))
    assert store.get("a", "modest") is not None
    assert [number for number in range(9) if store.get(str(number), "greedy")] == [6, 7, 8]


def test_a_key_leaves_others_room_to_make_responses():
    store = ResponseStore(max_responses=4)
    for name in "ab":
        store.put(owned(name, "greedy", "in_progress"))
    with pytest.raises(APIError) as caught:
        store.put(owned("c", "greedy", "in_progress"))
    assert caught.value.code == "queue_full"
    store.put(owned("c", "modest", "in_progress"))


def test_one_id_of_two_owners_is_two_responses():
    store = ResponseStore()
    mine, yours = owned("a", "alice"), owned("a", "bob")
    store.put(mine)
    store.put(yours)
    assert (store.get("a", "alice"), store.get("a", "bob"), store.get("a")) == (mine, yours, None)
    store.remove("a", "bob")
    assert store.get("a", "alice") is mine
