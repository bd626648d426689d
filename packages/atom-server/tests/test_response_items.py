"""Parts of a reply become the items of a response, and events that build the same items at the client."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from atom_server.output.parts import Part, assemble, cut, held_back, joined
from atom_server.responses.output import OutputWriter

LOGPROBS = [{"token": "a"}, {"token": "b"}]


class Told:
    """An `OutputWriter`, and the events that it wrote."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.writer = OutputWriter(self._event, lambda name, number: f"call_{name}_{number}")

    def take(self, *parts: tuple[str, str], logprobs: list[dict[str, Any]] | None = None) -> list[str]:
        """The kinds of the events that these parts make."""
        before = len(self.events)
        self.writer.take([Part(kind, text) for kind, text in parts], logprobs or [])  # type: ignore[arg-type]
        return [kind.removeprefix("response.") for kind, _ in self.events[before:]]

    def end(self, status: str = "completed", logprobs: list[dict[str, Any]] | None = None) -> list[str]:
        before = len(self.events)
        self.writer.end(status, logprobs or [])
        return [kind.removeprefix("response.") for kind, _ in self.events[before:]]

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.events.append((kind, copy.deepcopy(fields)))
        return b""


def test_text_opens_an_item_once_and_closes_it_at_the_end():
    told = Told()
    assert told.take(("content", "a")) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert told.take(("content", "b")) == ["output_text.delta"]
    assert told.end() == ["output_text.done", "content_part.done", "output_item.done"]
    [item] = told.writer.items
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["id"].startswith("msg_")
    assert item["content"] == [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]
    assert told.events[-1][1]["item"] == item


def test_reasoning_text_and_calls_are_items_of_their_own_in_order():
    told = Told()
    told.take(("reasoning", "hm"), ("content", "so"), ("name", "f"), ("arguments", "{}"), ("name", "g"))
    told.end("incomplete")
    items = told.writer.items
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert [item["status"] for item in items] == ["completed", "completed", "completed", "incomplete"]
    assert (items[0]["summary"], items[0]["content"]) == ([], [{"type": "reasoning_text", "text": "hm"}])
    assert [(item["call_id"], item["name"], item["arguments"]) for item in items[2:]] == [
        ("call_f_0", "f", "{}"),
        ("call_g_1", "g", ""),
    ]


def test_every_event_names_its_item_by_id_and_place():
    told = Told()
    told.take(("reasoning", "hm"), ("content", "so"), ("name", "f"), ("arguments", "{}"))
    told.end()
    ids = [item["id"] for item in told.writer.items]
    for _, fields in told.events:
        assert fields.get("item_id", fields.get("item", {}).get("id")) == ids[fields["output_index"]]
        assert fields.get("content_index", 0) == 0
    done = dict(told.events)["response.function_call_arguments.done"]
    assert (done["name"], done["arguments"], done["output_index"]) == ("f", "{}", 2)


def test_text_after_a_call_is_another_message():
    told = Told()
    told.take(("content", "a"), ("name", "f"), ("arguments", "{}"), ("content", "b"))
    told.end()
    assert [item["type"] for item in told.writer.items] == ["message", "function_call", "message"]
    assert [item["content"][0]["text"] for item in told.writer.items[::2]] == ["a", "b"]


def test_an_item_begins_empty_and_is_in_progress_until_it_ends():
    told = Told()
    told.take(("content", "a"))
    added, part, delta = (fields for _, fields in told.events)
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert delta["delta"] == "a"
    assert told.writer.items[0]["status"] == "in_progress"


def test_log_probabilities_go_with_the_first_text_of_the_message_and_late_ones_to_its_end():
    told = Told()
    told.take(("reasoning", "hm"), ("content", "a"), ("content", "b"), logprobs=LOGPROBS)
    deltas = [fields.get("logprobs") for kind, fields in told.events if kind.endswith("delta")]
    assert deltas == [None, LOGPROBS, []]
    told.end(logprobs=[{"token": "c"}])
    assert told.writer.items[1]["content"][0]["logprobs"] == [*LOGPROBS, {"token": "c"}]
    assert "logprobs" not in told.writer.items[0]["content"][0]
    ends = {kind: fields.get("logprobs") for kind, fields in told.events if kind.endswith("text.done")}
    assert ends == {"response.reasoning_text.done": None, "response.output_text.done": [*LOGPROBS, {"token": "c"}]}


def test_a_response_has_one_item_at_least():
    told = Told()
    assert told.end("incomplete", LOGPROBS)[0] == "output_item.added"
    [item] = told.writer.items
    assert (item["status"], item["content"][0]["text"], item["content"][0]["logprobs"]) == ("incomplete", "", LOGPROBS)


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "marks", "expected"),
    [
        ("ab<end>cd", ["<end>"], ("ab", "cd", "<end>")),
        ("ab<en", ["<end>"], ("ab", "<en", "")),
        ("ab<en<", ["<end>"], ("ab<en", "<", "")),
        ("ab", ["<end>"], ("ab", "", "")),
        ("x<b>y<a>", ["<a>", "<b>"], ("x", "y<a>", "<b>")),
        ("x<a>b", ["<a>", "<a>b"], ("x", "", "<a>b")),
        ("x<", ["<a>", "y"], ("x", "<", "")),
    ],
)
def test_text_is_cut_at_the_first_mark_and_held_where_one_may_begin(text, marks, expected):
    assert tuple(cut(text, *marks)) == expected


def test_a_whole_mark_is_not_its_own_beginning():
    assert held_back("abc", "abc") == 0
    assert held_back("xab", "abc") == 2
    assert held_back("aab", "aabc") == 3
    assert held_back("aaab", "aabc") == 3


def test_neighbors_of_one_kind_join_and_names_do_not():
    parts = [Part("content", "a"), Part("content", "b"), Part("name", "f"), Part("name", "g"), Part("arguments", "{")]
    assert joined([*parts, Part("arguments", "}")]) == [
        Part("content", "ab"),
        Part("name", "f"),
        Part("name", "g"),
        Part("arguments", "{}"),
    ]


def test_parts_make_up_a_whole():
    whole = assemble(
        [
            Part("reasoning", "h"),
            Part("reasoning", "m"),
            Part("content", "a"),
            Part("name", "f"),
            Part("arguments", "{"),
            Part("arguments", "}"),
            Part("name", "g"),
            Part("content", "b"),
        ]
    )
    assert (whole.content, whole.reasoning, whole.calls) == ("ab", "hm", [("f", "{}"), ("g", "")])
