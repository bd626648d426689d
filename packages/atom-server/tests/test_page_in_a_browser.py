"""The page in headless Chromium: on the real server, and on replies that a model could write."""

from __future__ import annotations

import asyncio
import base64
import re
import time

import msgspec
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from atom_server import ServerOptions
from atom_server.routes import page
from browser import Browser, needs_chromium
from http_edge import serving
from pictures import file_of, two_colors
from tiny_seeing import make_tiny_seeing

pytestmark = needs_chromium

ENTER, ESCAPE, SHIFT, RIGHT = "\ue007", "\ue00c", "\ue008", "\ue014"
# Notes every length that an answer has had.
COUNT_LENGTHS = """
window.seen = new Set();
const note = () => seen.add(document.querySelector(".answer > .text")?.textContent.length);
new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true});
"""
ATTACH = """
const bytes = Uint8Array.from(atob(arguments[0]), (character) => character.charCodeAt(0));
const given = new DataTransfer();
given.items.add(new File([bytes], "squares.png", {type: "image/png"}));
const field = document.querySelector("#pictures");
field.files = given.files;
field.dispatchEvent(new Event("change"));
"""
ENDED = "document.querySelector('.answer[aria-busy=false]')"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def window(chromium):
    """Opens the page of a server, as wide as asked for; its console has to stay empty, but for what a test takes."""

    def opened(url, *, width=800):
        chromium.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=700, deviceScaleFactor=1, mobile=False
        )
        chromium.open(url)
        return chromium

    yield opened
    assert chromium.console() == []
    chromium.open("about:blank")


def send(window, text="Hello", **settings):
    window.wait("document.querySelector('#model').length")
    for name, value in settings.items():
        window.run("document.querySelector(`[name=${arguments[0]}]`).value = arguments[1]", name, str(value))
    window.type("#prompt", text + ENTER)


def wait_until(is_true):
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The real server.


def test_a_picture_is_attached_where_the_model_sees_and_stays_in_the_conversation(window, make_server, tmp_path):
    with make_server(ServerOptions(served_model_name="tiny"), model=make_tiny_seeing(tmp_path / "tiny")) as seeing:
        tab = window(seeing.url)
        tab.wait("!document.querySelector('#attach').hidden")
        tab.run(ATTACH, base64.b64encode(file_of(two_colors(24, 16))).decode())
        send(tab, "what is it?", max_tokens=4)
        tab.wait(ENDED)
        assert tab.text("#status") == "The answer is complete."
        tab.wait("document.querySelector('.user img').naturalWidth === 24")
        assert tab.run("return document.querySelector('#pictures').files.length") == 0
        # A second turn has the picture of the first.
        send(tab, "and now?", max_tokens=4)
        tab.wait("document.querySelectorAll('.answer[aria-busy=false]').length === 2")
        assert tab.text("#status") == "The answer is complete."


def test_no_picture_is_asked_for_where_the_model_reads_text(server, window):
    tab = window(server.url)
    tab.wait("document.querySelector('#model').length")
    assert tab.run("return document.querySelector('#attach').hidden")


def test_an_answer_is_shown_while_it_comes_with_its_numbers(server, window):
    tab = window(server.url)
    tab.run(COUNT_LENGTHS)
    send(tab, max_tokens=40, seed=1)
    tab.wait(ENDED)
    assert tab.run("return seen.size") > 3
    numbers = tab.text(".numbers")
    assert " tokens · " in numbers
    assert " tokens/s · first token after 0." in numbers
    assert tab.text(".user .text") == "Hello"
    assert tab.text("#status") == "The answer is complete."


def test_the_conversation_and_the_settings_reach_the_model(server, window):
    tab = window(server.url)
    send(tab, max_tokens=3, seed=7, temperature=0, system="Be brief.")
    tab.wait(ENDED)
    first = tab.text(".answer .text")
    send(tab, "More")
    tab.wait("document.querySelectorAll('.answer[aria-busy=false]').length == 2")
    turns = [("system", "Be brief."), ("user", "Hello"), ("assistant", first), ("user", "More")]
    messages = [{"role": role, "content": content} for role, content in turns]
    answer = server.post("/v1/chat/completions", messages=messages, max_tokens=3, temperature=0).json()
    assert tab.text(".answer:last-child .text") == answer["choices"][0]["message"]["content"]


def test_escape_ends_the_request_on_the_server(server, window):
    tab = window(server.url)
    assert server.post("/pause").status_code == 200
    try:
        send(tab)
        wait_until(lambda: server.state.active)
        assert tab.run("return [document.querySelector('#send').hidden, document.querySelector('#stop').hidden]") == [
            True,
            False,
        ]
        tab.type("#prompt", ESCAPE)
        wait_until(lambda: not server.state.active)
        tab.wait(ENDED)
    finally:
        server.post("/resume")
    assert tab.text(".numbers") == "stopped"
    assert tab.run("return document.querySelector('#prompt').value") == "Hello", "it can be asked again"


def test_a_token_shows_its_alternatives_under_the_mouse_and_the_keyboard(server, window):
    tab = window(server.url)
    tab.click("#settings summary")
    tab.click("[name=logprobs]")
    send(tab, max_tokens=6, seed=1)
    tab.wait(ENDED)
    tab.hover(".answer .token")
    tab.wait("!document.querySelector('#alternatives').hidden")
    assert tab.text("#alternatives").count(" %") >= 5
    assert tab.run("return JSON.parse(document.querySelector('.chosen code').textContent)") == tab.run(
        "return document.querySelector('.token').textContent"
    )
    assert tab.run("return [...document.querySelectorAll('.token')].map(e => e.tabIndex).slice(0, 2)") == [0, -1]
    tab.run("document.querySelector('.token').focus()")
    tab.type(".token", RIGHT)
    assert tab.run("return document.activeElement.previousElementSibling == document.querySelector('.token')")
    tab.run("document.activeElement.blur()")
    assert tab.run("return document.querySelector('#alternatives').hidden")


def test_what_the_server_refuses_is_said_and_can_be_asked_again(server, window):
    tab = window(server.url)
    send(tab, max_tokens=100_000)
    tab.wait(ENDED)
    assert "max_tokens" in tab.text(".failed .numbers")
    assert tab.run("return document.querySelector('#prompt').value") == "Hello"
    assert all("status of 400" in line for line in tab.console())
    tab.messages.clear()


def test_the_plots_move_and_open_requests_are_listed(server, window):
    tab = window(server.url, width=1200)
    running = "document.querySelectorAll('#plots path')[1].getAttribute('d')"
    before = tab.wait(running)
    assert server.post("/pause").status_code == 200
    try:
        send(tab)
        tab.wait("document.querySelector('#requests td')?.textContent")
        assert "chatcmpl-" in tab.text("#requests tbody")
    finally:
        server.post("/resume")
    tab.wait(ENDED)
    tab.wait(f"{running}.split('L').length > {before.count('L') + 2}")
    assert tab.wait("document.querySelector('#plots path').getAttribute('d')").startswith("M")
    assert "Llama" in tab.text("#machine")
    tab.wait("document.querySelector('#requests').hidden")


# Keys.


def test_a_key_is_asked_for_and_stays_in_the_tab(make_front, window):
    with make_front(ServerOptions(served_model_name="tiny", api_key="right", admin_key="root")) as front:
        tab = window(front.url, width=1200)
        tab.wait("document.querySelector('dialog').open")
        tab.type("#key", "wrong" + ENTER)
        tab.wait("document.querySelector('#key-why').textContent.includes('does not know')")
        tab.type("#key", "right" + ENTER)
        tab.wait("document.querySelector('#model').length")
        assert tab.run("return Object.values(sessionStorage)") == ["right"]
        assert tab.run("return [localStorage.length, document.cookie, location.href]") == [0, "", front.url + "/"]
        tab.wait("document.querySelector('#requests-note').textContent == 'They need the admin key.'")
        send(tab, max_tokens=2)
        tab.wait(ENDED)
        assert "tokens" in tab.text(".numbers")
        tab.click("#give-key")
        tab.type("#key", "root" + ENTER)
        tab.wait("document.querySelector('#requests-note').textContent == 'None.'")
    assert all("status of 401" in line or "status of 403" in line for line in tab.console())
    tab.messages.clear()


def test_who_gives_no_key_is_told_and_not_asked_for_ever(make_front, window):
    with make_front(ServerOptions(api_key="right")) as front:
        tab = window(front.url, width=1200)
        tab.wait("document.querySelector('dialog').open")
        tab.type("#key", ESCAPE)
        tab.wait("document.querySelector('#status').textContent.includes('none was given')")
        time.sleep(2.5)
        assert not tab.run("return document.querySelector('dialog').open")
    assert all("status of 401" in line for line in tab.console())
    tab.messages.clear()


# Replies that a model could write.


class Replies:
    """A server that has the page and answers every chat with `deltas`; unless it `ends` the answer has no end."""

    def __init__(self):
        self.deltas, self.ends, self.was_left = [], True, False
        self.app = FastAPI()
        self.app.include_router(page.router)
        self.app.get("/v1/models")(lambda: {"data": [{"id": "model"}]})
        self.app.post("/v1/chat/completions")(self._chat)

    async def _chat(self):
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self):
        try:
            yield b": a comment of a proxy\n\n"
            for number, (delta, logprobs) in enumerate(self.deltas, 1):
                choice = {"delta": delta, "logprobs": logprobs and {"content": logprobs}, "finish_reason": None}
                yield (
                    b"data: "
                    + msgspec.json.encode({"choices": [choice], "usage": {"completion_tokens": number}})
                    + b"\n\n"
                )
            if not self.ends:
                await asyncio.sleep(60)
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.was_left = True
            raise


@pytest.fixture
def replies(window):
    made = Replies()
    with serving(made.app) as port:
        made.window = lambda: window(f"http://127.0.0.1:{port}")
        yield made


def token(data, probability=0.5):
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": -probability, "top_logprobs": []}


EVIL = (
    "<script>alert(1)</script><img src=x onerror=\"document.title='evil'\"><b>bold</b> &amp; [x](javascript:alert(1))"
)


@pytest.mark.parametrize(("field", "logprobs"), [("content", [token(EVIL.encode())]), ("reasoning_content", None)])
def test_a_models_text_is_never_html(replies, field, logprobs):
    replies.deltas = [({field: EVIL}, logprobs)]
    tab = replies.window()
    send(tab, EVIL)
    tab.wait(ENDED)
    assert tab.text(".answer .text") == tab.text(".user .text") == EVIL
    assert tab.run("return document.querySelectorAll('main :is(script, img, b, a)').length") == 0
    if logprobs:
        tab.run("document.querySelector('.token').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))")
        assert "onerror" in tab.text("#alternatives code")
    assert tab.run("return document.title") == "ATOM"
    assert tab.run("try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name }") == "TypeError"
    assert all("TrustedHTML" in line for line in tab.console())
    tab.messages.clear()


def test_reasoning_is_folded(replies):
    replies.deltas = [({"reasoning_content": "Let me think."}, None), ({"content": "Four."}, None)]
    tab = replies.window()
    send(tab)
    tab.wait(ENDED)
    assert tab.run("return document.querySelector('.answer details').open") is False
    assert tab.text(".answer details .text") == "Let me think."
    assert tab.text(".answer > .text") == "Four."


def test_tokens_meet_their_text_whatever_comes_first_and_whatever_is_left_out(replies):
    waving = "👋".encode()
    replies.deltas = [
        ({"content": ""}, [token(b"<think>")]),
        ({"content": "Hi"}, [token(b" Hi")]),
        ({"content": ""}, [token(waving[:2])]),
        ({"content": "👋"}, [token(waving[2:])]),
        ({"content": "one two"}, [token(b"one"), token(b" two"), token(b"<|end|>")]),
        ({"content": " no"}, [token(b" now")]),
        ({"content": "w rest"}, None),
    ]
    tab = replies.window()
    send(tab)
    tab.wait(ENDED)
    assert tab.run("return [...document.querySelectorAll('.token')].map(e => e.textContent)") == [
        "Hi",
        "👋",
        "one",
        " two",
        " now",
    ]
    assert tab.text(".answer > .text") == "Hi👋one two now rest"


def test_what_came_before_a_stop_stays_and_the_request_is_given_up(replies):
    replies.deltas, replies.ends = [({"content": "So far"}, None)], False
    tab = replies.window()
    send(tab)
    tab.wait("document.querySelector('.answer > .text').textContent")
    tab.click("#stop")
    tab.wait(ENDED)
    wait_until(lambda: replies.was_left)
    assert tab.text(".answer > .text") == "So far"
    assert tab.text(".numbers").endswith("stopped")


# Whoever uses it, and on what.


def test_shift_and_enter_begin_a_line(replies):
    tab = replies.window()
    tab.type("#prompt", f"one{SHIFT}{ENTER}{SHIFT}two")
    assert tab.run("return document.querySelector('#prompt').value") == "one\ntwo"
    assert tab.text(".user") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colours_that_are_asked_for_and_fits_a_phone(server, window, scheme):
    tab = window(server.url, width=360)
    tab.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    send(tab, "w" * 99, max_tokens=1)
    tab.wait(ENDED)
    tab.click("#show-engine")
    tab.wait("document.querySelector('#now dd')")
    too_wide = (
        "[document.documentElement, document.querySelector('#messages')].some(e => e.scrollWidth > e.clientWidth)"
    )
    assert tab.run(f"return {too_wide}") is False
    colours = tab.run(
        "const {backgroundColor, color} = getComputedStyle(document.body); return [backgroundColor, color]"
    )
    back, front = (int(re.findall(r"\d+", colour)[0]) for colour in colours)
    assert (back > front) == (scheme == "light")
    assert abs(back - front) > 180
