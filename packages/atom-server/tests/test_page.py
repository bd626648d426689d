"""The files of the page at ``/``: who gets them, with which headers, and what is asked for a key all the same."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from atom_server import ServerOptions
from atom_server.routes.page import PAGE_PATHS

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGE = files("atom_server") / "page"


def get(server, path, **headers):
    return httpx.get(server.url + path, headers=BROWSER | headers, timeout=30)


@pytest.fixture(scope="module")
def closed(make_front):
    with make_front(ServerOptions(api_key="right")) as front:
        yield front


def test_a_browser_gets_the_page_and_other_programs_a_few_words(server):
    assert get(server, "/").text == (PAGE / "index.html").read_text()
    for accept in ("*/*", "application/json", ""):
        answer = get(server, "/", accept=accept)
        assert answer.headers["content-type"].startswith("text/plain")
        assert "/docs" in answer.text
    assert "accept" in get(server, "/").headers["vary"]


def test_every_file_of_the_page_is_served_and_none_other(server):
    assert {"/", *(f"/page/{file.name}" for file in PAGE.iterdir() if file.name != "index.html")} == PAGE_PATHS
    assert {get(server, path).status_code for path in PAGE_PATHS} == {200}
    kinds = {path.rpartition(".")[2]: get(server, path).headers["content-type"] for path in PAGE_PATHS - {"/"}}
    assert kinds == {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
    for path in ("/page/", "/page/index.html", "/page/other.js", "/page/..%2Fsettings.py", "/page/%2e%2e/app.py"):
        assert get(server, path).status_code == 404


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_every_file_has_the_policy_that_lets_the_page_do_nothing_but_its_own(server, path):
    headers = get(server, path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy.pop("img-src") == "'self' data:"
    assert {policy.pop(name) for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert policy == dict.fromkeys(
        ("default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"), "'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_a_file_that_the_browser_has_is_not_sent_again(server, path):
    whole = get(server, path)
    assert whole.headers["cache-control"] == "no-cache"
    tag = whole.headers["etag"]
    for given in (tag, f'"other", {tag}', f"W/{tag}"):
        again = get(server, path, **{"if-none-match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert get(server, path, **{"if-none-match": '"other"'}).status_code == 200


def test_the_files_of_the_page_need_no_key_and_all_that_they_ask_for_does(closed):
    assert {get(closed, path).status_code for path in PAGE_PATHS} == {200}
    asked = {path for file in PAGE.iterdir() for path in re.findall(r'ask\("([^"]+)"', file.read_text())}
    assert asked == {"v1/models", "v1/chat/completions", "metrics", "debug/requests", "server_info"}
    for path in [*(f"/{path}" for path in asked), "/page/other.js", "/page", "/page/", "//", "/index.html"]:
        assert get(closed, path).status_code == 401


def test_the_page_is_not_served_under_the_name_of_another_host(server):
    assert get(server, "/", host="evil.example").status_code == 403


def test_a_server_without_the_page_has_none_of_its_paths(make_front):
    with make_front(ServerOptions(page=False)) as front:
        assert {get(front, path).status_code for path in PAGE_PATHS} == {404}
    with make_front(ServerOptions(page=False, api_key="right")) as front:
        assert {get(front, path).status_code for path in PAGE_PATHS} == {401}


def test_the_page_has_nothing_of_other_addresses_and_no_script_or_style_inside():
    text = "".join(file.read_text() for file in PAGE.iterdir())
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", text) == []
    index = (PAGE / "index.html").read_text()
    assert (
        re.findall(r"<style|<script(?! type=\"module\" src=\"page/main.js\"></script>)|\son\w+=|\sstyle=", index) == []
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|cookie", text)


def test_every_field_and_button_of_the_page_has_a_name():
    index = (PAGE / "index.html").read_text()
    labelled = re.findall(r"<label[^>]*>(?:[^<]|<(?!/label))*</label>", index)
    inside = {name for label in labelled for name in re.findall(r'(?:name|id|for)="([^"]+)"', label)}
    fields = re.findall(r'<(?:input|select|textarea)[^>]*?(?:name|id)="([^"]+)"', index)
    assert len(fields) > 8
    assert set(fields) <= inside
    assert all(text.strip() for text in re.findall(r"<button[^>]*>([^<]*)</button>", index))
