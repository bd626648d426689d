"""The event loop goes through none of a long request's token ids: counted, not timed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import ClassVar

import pytest

from atom_core.engine.inputs import checked_prompts
from atom_core.engine.inputs.validation import SLICE_TOKENS, check_prompt_ids
from atom_server.bodies.body import decode_json_object

LONG = [5 + place % 50 for place in range(400)]


class CountedIds(list):
    """Token ids that count how many of them each thread goes through, one after the other or put together."""

    counts: ClassVar[Counter[int]] = Counter()

    def __iter__(self):
        self.counts[threading.get_ident()] += len(self)
        return super().__iter__()

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return CountedIds(found) if isinstance(key, slice) else found

    def __add__(self, other):
        self.counts[threading.get_ident()] += len(self) + len(other)
        return CountedIds(super().__add__(other))


@pytest.fixture
def counts(server, monkeypatch):
    """How many ids each thread goes through, of requests and of what the tokenizer gives."""
    CountedIds.counts = Counter()
    encode = server.engine.texts.encode

    def counted(value):
        if isinstance(value, list) and value and isinstance(value[0], int):
            return CountedIds(value)
        return [counted(entry) for entry in value] if isinstance(value, list) else value

    async def encode_counted(texts, **options):
        return [CountedIds(token_ids) for token_ids in await encode(texts, **options)]

    def decode_counted(body):
        return {name: counted(value) for name, value in decode_json_object(body).items()}

    monkeypatch.setattr("atom_server.routes.accepted.decode_json_object", decode_counted)
    monkeypatch.setattr(server.engine.texts, "encode", encode_counted)
    return CountedIds.counts


def loop_thread(server) -> int:
    return server._thread.ident


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": [LONG] * 8}),
        ("/v1/embeddings", {"input": [LONG * 2] * 8, "truncate_prompt_tokens": 300}),
        ("/v1/completions", {"prompt": [LONG] * 8, "max_tokens": 1}),
        ("/v1/rerank", {"query": "zq " * 80, "documents": [f"{n} zq " * 20 for n in range(12)]}),
        ("/v1/score", {"text_1": "zq " * 80, "text_2": ["zq " * 20] * 12}),
    ],
)
def test_token_ids_of_long_requests_are_gone_through_beside_the_event_loop(server, counts, path, fields):
    answer = server.post(path, **fields)
    assert answer.status_code == 200, answer.text
    assert sum(counts.values()) > checked_prompts.INLINE_TOKENS
    assert counts[loop_thread(server)] == 0


def test_the_event_loop_is_not_left_for_a_few_token_ids(server, counts):
    assert server.post("/v1/embeddings", input=[5, 6, 7]).status_code == 200
    assert set(counts) == {loop_thread(server)}


@pytest.mark.parametrize(("more", "num_read"), [({}, 3 + 3), ({"truncate_prompt_tokens": 2}, 3 + 2 + 2)])
def test_ids_are_checked_once_and_copied_once_unless_they_are_cut(server, counts, more, num_read):
    assert server.post("/v1/completions", prompt=[5, 6, 7], max_tokens=1, **more).status_code == 200
    assert counts.total() == num_read


def test_a_thread_goes_through_a_slice_of_token_ids_at_a_time():
    """A longer slice would keep the event loop from running for as long."""
    slices = []

    class Sliced(CountedIds):
        def __getitem__(self, key):
            part = super().__getitem__(key)
            slices.append(len(part))
            return part

    check_prompt_ids(Sliced([7] * (2 * SLICE_TOKENS + 1)), 8)
    assert slices == [SLICE_TOKENS, SLICE_TOKENS, 1]


@pytest.mark.parametrize("place", [0, SLICE_TOKENS - 1, SLICE_TOKENS, 2 * SLICE_TOKENS - 1])
@pytest.mark.parametrize("wrong", [-1, 8, True, 7.0, "7", None])
def test_a_wrong_token_id_is_found_in_any_slice(place, wrong):
    token_ids = [7] * 2 * SLICE_TOKENS
    token_ids[place] = wrong
    with pytest.raises(ValueError, match="input holds .*; token ids are integers from 0 to 7"):
        check_prompt_ids(token_ids, 8, name="input")


@pytest.mark.parametrize("wrong", [[5, 6.5], [5, "6"], [5, None], [5, -1], [[5], [6, 2**70]], [5, [6]], [["a"]]])
def test_what_is_no_token_id_is_refused_by_the_field_that_has_it(server, wrong):
    for path, field, more in (
        ("/v1/embeddings", "input", {}),
        ("/v1/completions", "prompt", {"max_tokens": 1, "truncate_prompt_tokens": 1, "echo": True}),
    ):
        answer = server.post(path, **{field: wrong}, **more)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, field, "invalid_token_id")
