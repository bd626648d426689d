"""`atom chat`: turns and commands, with an engine or a server, and how lines are typed."""

from __future__ import annotations

import asyncio
import io
import socket
import sys

import httpx
import pytest
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from atom_core import SamplingParams
from atom_server import ServerOptions
from atom_server.cli.main import main
from atom_server.cli.terminal.chatting.conversation import COMMANDS, Conversation
from atom_server.cli.terminal.chatting.lines import make_session, open_history
from atom_server.cli.terminal.chatting.partners import PartnerError, ServerPartner
from atom_server.schemas.fields.content import text_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
HELLO = [{"role": "user", "content": "hello"}]


class Echo:
    """Answers with what it was told last, and keeps all that it was told."""

    def __init__(self):
        self.asked = []

    async def answer(self, messages, params, show):
        self.asked.append((list(messages), params))
        text = text_of(messages[-1]["content"]).upper()
        if text == "FAIL":
            raise PartnerError("no answer")
        show(text)
        if text == "WAIT":
            raise asyncio.CancelledError
        return text, "[line]"


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def said(echo):
    """Says lines to a conversation with `echo`, and gives its messages as role letters and texts."""

    def say(*lines, system=None):
        conversation = Conversation(echo, GREEDY, system)

        async def run():
            return [await conversation.take(line) for line in lines]

        goes_on = asyncio.run(run())
        assert all(goes_on[:-1])
        return [f"{message['role'][0]}:{message['content']}" for message in conversation.messages]

    return say


def test_every_turn_has_those_before_it(said, echo):
    assert said("a", "", "b") == ["u:a", "a:A", "u:b", "a:B"]
    assert [message["content"] for message in echo.asked[1][0]] == ["a", "A", "b"]


def test_clearing_keeps_the_instructions_and_others_begin_anew(said):
    assert said("a", "/clear", system="s") == ["s:s"]
    assert said("a", "/system other", "b", system="s") == ["s:other", "u:b", "a:B"]
    assert said("a", "/system", system="s") == []


def test_a_picture_goes_with_one_turn_and_is_shown_again_with_it(echo, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"picture")
    show = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGljdHVyZQ=="}}
    shown = [show, {"type": "text", "text": "a"}]
    conversation = Conversation(echo, GREEDY, shown=[show])

    async def run():
        for line in ("fail", "a", "/retry", "b", f"/image {file}", "a"):
            await conversation.take(line)

    asyncio.run(run())
    asked = [messages[-1]["content"] for messages, _ in echo.asked]
    assert asked[1:] == [shown, shown, "b", shown]


def test_a_video_goes_beside_pictures_in_the_order_in_which_they_were_named(said, echo, tmp_path):
    for name in ("a.png", "b.MOV"):
        (tmp_path / name).write_bytes(b"file")
    said(f"/video {tmp_path / 'b.MOV'}", f"/image {tmp_path / 'a.png'}", "c", "d")
    first, last = (messages[-1]["content"] for messages, _ in echo.asked)
    assert first == [
        {"type": "video_url", "video_url": {"url": "data:video/quicktime;base64,ZmlsZQ=="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,ZmlsZQ=="}},
        {"type": "text", "text": "c"},
    ]
    assert last == "d"


def test_a_file_that_is_no_picture_is_refused(said, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("hello")
    assert said(
        f"/image {tmp_path / 'a.txt'}", f"/video {tmp_path / 'b.png'}", "/image", f"/image {tmp_path / 'b.png'}", "a"
    ) == ["u:a", "a:A"]
    errors = capsys.readouterr().err
    assert "is no video by its name; allowed are names with .mp4" in errors
    assert "is no image by its name; allowed are names with .png" in errors
    assert "name a file" in errors
    assert "No such file" in errors


def test_a_turn_is_forgotten_or_answered_again(said, echo):
    assert said("a", "b", "/undo") == ["u:a", "a:A"]
    assert said("a", "b", "/retry") == ["u:a", "a:A", "u:b", "a:B"]
    assert [messages[-1]["content"] for messages, _ in echo.asked] == ["a", "b", "a", "b", "b"]


@pytest.mark.parametrize("command", ["/undo", "/retry"])
def test_without_a_turn_there_is_nothing_to_forget(command, said, capsys):
    assert said(command) == []
    assert capsys.readouterr().err == "there is no turn yet\n"


def test_what_was_said_before_a_stop_is_kept_and_a_failure_is_forgotten(said, capsys):
    assert said("wait") == ["u:wait", "a:WAIT"]
    assert "[stopped]" in capsys.readouterr().err
    assert said("a", "fail") == ["u:a", "a:A"]
    assert capsys.readouterr().err == "no answer (/clear starts again)\n"


def test_settings_hold_from_the_next_answer_on(said, echo):
    said("a", "/set temperature 0.5", "/set seed 3", "b")
    assert [(params.temperature, params.seed) for _, params in echo.asked] == [(0.0, None), (0.5, 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temperature hot", "temperature cannot be 'hot'"),
        ("/set max_tokens 1.5", "max_tokens cannot be '1.5'"),
        ("/set colour 3", "/set takes one of temperature, top_p, top_k, max_tokens, seed"),
        ("/set", "now they are temperature 0.0"),
        ("/save", "name a file"),
        ("/load /nowhere", "No such file"),
        ("/dance", "there is no /dance; /help says what there is"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_changes_nothing(line, message, said, echo, capsys):
    assert said("a", line, "b") == ["u:a", "a:A", "u:b", "a:B"]
    assert message in capsys.readouterr().err
    assert echo.asked[1][1] == GREEDY


def test_a_conversation_that_was_saved_goes_on(said, tmp_path):
    said("a", f"/save {tmp_path / 'talk.json'}", system="s")
    assert said(f"/load {tmp_path / 'talk.json'}", "b") == ["s:s", "u:a", "a:A", "u:b", "a:B"]


@pytest.mark.parametrize("text", ["{", "{}", '[{"role": "user"}]', "[1]"])
def test_a_file_that_is_no_conversation_is_refused(text, said, tmp_path, capsys):
    path = tmp_path / "talk.json"
    path.write_text(text)
    assert said("a", f"/load {path}") == ["u:a", "a:A"]
    assert str(path) in capsys.readouterr().err


def test_help_tells_every_command_and_leaving_ends(said, capsys):
    said("/help")
    assert [line[:17].strip() for line in capsys.readouterr().err.splitlines()] == list(COMMANDS)
    conversation = Conversation(Echo(), GREEDY)
    assert [asyncio.run(conversation.take(line)) for line in ("/exit", "/quit", "exit")] == [False, False, True]


def asked_of(url, messages=HELLO, model=None, key=None):
    pieces = []

    async def ask():
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            return await ServerPartner(client, model).answer(messages, GREEDY, pieces.append)

    text, line = asyncio.run(ask())
    assert "".join(pieces) == text
    return text, line


def test_a_servers_answer_is_that_of_its_route(server):
    whole = server.post("/v1/chat/completions", messages=HELLO, temperature=0, max_tokens=8).json()
    text, line = asked_of(server.url)
    assert text == whole["choices"][0]["message"]["content"]
    assert line.startswith("[8 tokens, first after")


def test_what_a_server_refuses_is_told(server, make_front):
    with pytest.raises(PartnerError, match=r"answers 404: .*no-such-model"):
        asked_of(server.url, model="no-such-model")
    with make_front(ServerOptions(api_key="right")) as guarded:
        with pytest.raises(PartnerError, match="answers 401"):
            asked_of(guarded.url, key="wrong")
        assert asked_of(guarded.url, key="right")[0] == asked_of(server.url)[0]


def test_a_server_that_is_not_there_is_told():
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PartnerError, match=f"127.0.0.1:{port}.* does not answer"):
            asked_of(f"http://127.0.0.1:{port}")


def test_the_command_talks_to_a_server_without_an_engine(server, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n/exit\nnever read\n"))
    assert main(["chat", "--url", server.url + "/v1", "--temperature", "0", "--max-tokens", "8"]) == 0
    assert capfd.readouterr().out.strip() == asked_of(server.url)[0].strip()


def typed(keys, **keywords):
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        return make_session(InMemoryHistory(), input=pipe, output=DummyOutput(), **keywords).prompt()


def test_enter_ends_what_is_typed_and_alt_enter_begins_another_line():
    assert typed("one\x1b\rtwo\r") == "one\ntwo"


def test_commands_are_completed_where_a_line_begins_with_them():
    completer = make_session(InMemoryHistory(), input=None, output=DummyOutput()).completer
    found = [each.text for each in completer.get_completions(Document("/s"), None)]
    assert found == ["/system", "/set", "/save"]
    assert list(completer.get_completions(Document("say /s"), None)) == []


def test_what_was_typed_is_kept_where_nobody_else_reads_it(tmp_path):
    open_history(tmp_path / "cache" / "chat_history").store_string("hello")
    path = tmp_path / "cache" / "chat_history"
    assert path.stat().st_mode & 0o077 == 0
    assert list(open_history(path).load_history_strings()) == ["hello"]


def test_a_history_that_cannot_be_kept_is_none_on_disk(tmp_path):
    (tmp_path / "file").write_text("")
    assert isinstance(open_history(tmp_path / "file" / "chat_history"), InMemoryHistory)
