"""Several keys: where they come from, what is closed without one, and what one key's holder sees of another's."""

from __future__ import annotations

import hashlib
import hmac
import logging

import httpx
import pytest

from atom_core.config import ConfigError
from atom_server import ServerOptions, create_app
from atom_server.access.guard import OPEN_PATHS
from atom_server.access.keys import KeyRing, read_key_file
from http_edge import serving

KEYS = {"api_key": "alice,bob", "admin_key": "root"}


@pytest.fixture
def key_file(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


class Front:
    """Another front of the shared engine, asked with one key or another."""

    def __init__(self, engine, **options):
        self.app = create_app(engine, ServerOptions(served_model_name="tiny", **options))
        self._options = options

    def __enter__(self):
        self._serving = serving(self.app, **self._options)
        self.url = f"http://127.0.0.1:{self._serving.__enter__()}"
        return self

    def __exit__(self, *exception):
        self._serving.__exit__(*exception)

    def ask(self, key, method, path, **fields):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        content = {"json": fields} if fields else {}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **content)


@pytest.fixture(scope="module")
def front(server):
    with Front(server.engine, **KEYS) as running:
        yield running


def code_of_any(answer):
    return answer.json()["error"]["code"] if answer.status_code >= 400 and answer.content else None


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


# Where keys come from.


def test_a_file_holds_keys_names_digests_and_remarks(key_file):
    digest = hashlib.sha256(b"third").hexdigest()
    ring = KeyRing(read_key_file(key_file(f"first\n\n# remark\nteam-b second # of team b\nteam-c sha256:{digest}\n")))
    assert len(ring) == 3
    assert [ring.find(key).name for key in ("second", "third")] == ["team-b", "team-c"]
    assert ring.find("first").name == "key-" + hashlib.sha256(b"first").hexdigest()[:12]
    for other in ("", "first ", "team-b", digest, f"sha256:{digest}", "third\n"):
        assert ring.find(other) is None


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "a b SECRET", "b@d SECRET", "admin SECRET", "schlüsselSECRET"])
def test_a_file_that_is_none_is_refused_without_showing_a_key(key_file, text):
    with pytest.raises(ConfigError, match="api_key_file") as caught:
        read_key_file(key_file(text))
    assert "SECRET" not in str(caught.value)


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing.of(ServerOptions(api_key_file=str(tmp_path / "missing")))


def test_a_file_that_others_can_read_is_told_of(key_file, caplog):
    with caplog.at_level(logging.WARNING):
        read_key_file(key_file("key", 0o600))
        assert not caplog.records
        read_key_file(key_file("key", 0o644))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("text", ["a one\na two", "a one\nb one"])
def test_a_name_is_of_one_key_and_a_key_has_one_name(key_file, text):
    with pytest.raises(ConfigError):
        KeyRing(read_key_file(key_file(text)))


def test_keys_come_from_all_places_together(key_file):
    ring = KeyRing.of(ServerOptions(api_key="one,two", api_key_file=str(key_file("three")), admin_key="root"))
    assert all(ring.find(key) for key in ("one", "two", "three", "root"))
    assert [ring.find(key).is_admin for key in ("one", "three", "root")] == [False, False, True]


def test_no_key_itself_is_kept():
    ring = KeyRing.of(ServerOptions(api_key="very-secret", admin_key="most-secret"))
    assert "secret" not in repr(vars(ring))


def test_each_key_is_compared_in_constant_time_whatever_is_found_first(monkeypatch):
    compared = []
    honest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(b)) or honest(a, b))
    ring = KeyRing.of(ServerOptions(api_key="one,two,three"))
    for given in ("one", "three", "none of them"):
        compared.clear()
        ring.find(given)
        assert compared == [32, 32, 32]


def test_a_server_that_requires_a_key_does_not_start_without():
    with pytest.raises(ConfigError, match="require_key"):
        KeyRing.of(ServerOptions(require_key=True))
    assert len(KeyRing.of(ServerOptions(require_key=True, api_key="one"))) == 1


def test_without_keys_everybody_may_do_everything():
    caller = KeyRing().find("")
    assert (caller.is_admin, caller.tenant, caller.cache_salt("mine")) == (True, "", "mine")


# What is closed.


def test_every_route_but_the_probes_is_closed_without_a_key(front):
    paths = {path: next(iter(methods)).upper() for path, methods in front.app.openapi()["paths"].items()}
    assert len(paths) > 15
    paths |= dict.fromkeys(("/docs", "/redoc", "/openapi.json", "/metrics"), "GET")
    with httpx.Client(timeout=30) as client:
        for path, method in [*paths.items(), ("/no/such/path", "GET"), ("/health/", "GET"), ("//health", "GET")]:
            answer = client.request(method, front.url + path, headers={"authorization": "Bearer wrong"})
            assert (answer.status_code == 401) == (path not in OPEN_PATHS), path


@pytest.mark.parametrize(("settings", "is_open"), [({}, False), ({"open_metrics": True}, True)])
def test_metrics_are_open_by_a_flag_alone(server, settings, is_open):
    with Front(server.engine, api_key="one", **settings) as front:
        assert (front.ask("", "GET", "/metrics").status_code != 401) == is_open


def test_every_route_of_the_administrator_is_closed_to_other_keys(front):
    routes = [(path, method.upper()) for path, each in front.app.openapi()["paths"].items() for method in each]
    closed = {path for path, method in routes if code_of_any(front.ask("alice", method, path)) == "admin_key_required"}
    assert closed == {
        *("/debug/requests", "/abort_requests", "/reset_prefix_cache", "/pause", "/resume", "/is_paused"),
        *("/sleep", "/wake_up", "/is_sleeping", "/start_profile", "/stop_profile"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    }


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_what_is_about_the_server_asks_for_the_admin_key(front, path):
    assert code_of(front.ask("alice", "POST", path)) == (403, "admin_key_required")
    assert code_of(front.ask("root", "POST", path)) == (409, "profiler_not_ready")


def test_with_keys_and_no_admin_key_nobody_is_the_administrator(server):
    with Front(server.engine, api_key="one") as front:
        assert code_of(front.ask("one", "POST", "/start_profile")) == (403, "admin_key_required")


def test_the_admin_key_may_do_all_else_too(front):
    assert front.ask("root", "POST", "/v1/completions", prompt="hello", max_tokens=1).status_code == 200


def test_no_key_is_shown(front):
    info = front.ask("alice", "GET", "/server_info").json()
    assert info["server"]["asks_for_api_key"] is True
    assert not {"api_key", "admin_key"} & set(info["server"])


# Stored responses.


def respond(front, key, **fields):
    return front.ask(key, "POST", "/v1/responses", model="tiny", input="hello", max_output_tokens=16, **fields)


def test_responses_belong_to_the_key_that_made_them(front):
    made = respond(front, "alice").json()["id"]
    path = f"/v1/responses/{made}"
    for method, target in [
        ("GET", path),
        ("GET", path + "/input_items"),
        ("DELETE", path),
        ("POST", path + "/cancel"),
    ]:
        for key in ("bob", "root"):
            assert code_of(front.ask(key, method, target)) == (404, "response_not_found"), target
    assert code_of(respond(front, "bob", previous_response_id=made)) == (400, "previous_response_not_found")
    assert respond(front, "alice", previous_response_id=made).status_code == 200
    assert front.ask("alice", "GET", path).json()["id"] == made
    assert front.ask("alice", "DELETE", path).status_code == 200


# Shares, and prefixes.


def test_a_request_is_its_keys_in_the_engine(server, front):
    content = {"prompt": "hello", "max_tokens": 400, "stream": True, "ignore_eos": True, "n": 16}
    headers = {"authorization": "Bearer alice"}
    with httpx.stream("POST", front.url + "/v1/completions", json=content, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()  # the stream ends with it
        next(lines)
        [caller] = [generation._caller for generation in front.app.state.server.active]
        assert caller.name.startswith("key-")
        assert server.engine._open.load_of(caller.tenant).num_samples == 16
        [shown] = front.ask("root", "GET", "/debug/requests").json()["requests"]
        assert (shown["key"], shown["prompt_tokens"] > 0) == (caller.name, True)
        assert "hello" not in str(shown)
        assert code_of(front.ask("alice", "GET", "/debug/requests")) == (403, "admin_key_required")


def cached_tokens(front, key, prompt, **fields):
    answer = front.ask(key, "POST", "/v1/completions", prompt=prompt, max_tokens=1, **fields).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_no_key_finds_the_prefixes_of_another(front):
    prompt = [7] * 64
    assert cached_tokens(front, "alice", prompt) == 0
    assert cached_tokens(front, "bob", prompt) == 0
    assert cached_tokens(front, "alice", prompt) > 0
    assert cached_tokens(front, "alice", prompt, cache_salt="other") == 0
    # The salt that the server makes of a key cannot be asked for by another.
    alice = front.app.state.server.keys.find("alice")
    assert cached_tokens(front, "bob", prompt, cache_salt=alice.cache_salt("")) == 0


def test_keys_may_share_their_prefixes(server):
    with Front(server.engine, api_key="alice,bob", share_prefixes=True) as front:
        prompt = [8] * 64
        assert cached_tokens(front, "alice", prompt) == 0
        assert cached_tokens(front, "bob", prompt) > 0


# Rates.


def test_a_key_that_asks_too_often_is_told_when_to_come_back(server):
    with Front(server.engine, api_key="alice,bob", requests_per_minute=2) as front:
        statuses = [front.ask("alice", "POST", "/tokenize", prompt="hello").status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        answer = front.ask("alice", "POST", "/v1/completions", prompt="hello", max_tokens=1)
        assert code_of(answer) == (429, "rate_limit_exceeded")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert front.ask("bob", "POST", "/v1/completions", prompt="hello", max_tokens=1).status_code == 200
        assert front.ask("alice", "GET", "/v1/models").status_code == 200


def test_tokens_of_prompts_and_of_output_count(server):
    with Front(server.engine, api_key="alice,bob", tokens_per_minute=60) as front:
        asked = {"prompt": [5] * 20, "max_tokens": 30, "ignore_eos": True}
        assert front.ask("alice", "POST", "/v1/completions", **asked).status_code == 200
        answer = front.ask("alice", "POST", "/v1/completions", **asked)
        assert code_of(answer) == (429, "rate_limit_exceeded")
        assert "tokens a minute" in answer.json()["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 15
        assert front.ask("alice", "POST", "/v1/completions", prompt=[5] * 3, max_tokens=1).status_code == 200
        assert front.ask("bob", "POST", "/v1/completions", **asked).status_code == 200
